"""Versions of packages are not looked up again while no folder in which Python looks for packages changed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from flatout.base.files import read_json, write_bytes
from flatout.pipelines.identity.hashing import digest_of

_SETTLED_NS = 2_000_000_000  # some file systems count seconds


def search_path() -> list[tuple[str, int]]:
    """The folders in which Python looks, with the time when each changed: one of packages changes when one is installed."""
    return [(place, _changed_ns(place)) for place in sys.path]


def remembered_versions(folder: Path, names: Sequence[str], look_up: Callable[[], dict[str, str]]) -> dict[str, str]:
    """`folder`: where they are kept."""
    began_ns = time.time_ns()
    path = search_path()
    wanted = digest_of([sys.version, path])
    place = folder / "versions" / f"{digest_of([sys.prefix, *names])[:32]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        known = read_json(place)
        if known["of"] == wanted and known["clock_ns"] < began_ns:
            return {str(name): str(version) for name, version in known["versions"].items()}
    found = look_up()
    if all(at + _SETTLED_NS < began_ns for _, at in path):
        with suppress(OSError):  # a cache that can't be written costs time alone
            place.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(place, json.dumps({"of": wanted, "clock_ns": began_ns, "versions": found}).encode())
    return found


def _changed_ns(place: str) -> int:
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0
