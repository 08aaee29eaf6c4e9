"""YAML files as values. What was read is remembered by its text: to read YAML takes longer than to see that nothing changed."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.base.files import read_json, write_bytes
from flatout.base.trust import private_cache
from flatout.pipelines.identity.hashing import digest_of

MOST_BYTES = 4 << 20  # UTF-8 uses at most four bytes for each of the characters that may be in a file

ReadYaml = Callable[[Path, str], tuple[Any, list[str]]]


def plain(place: Path, text: str) -> tuple[Any, list[str]]:
    """The value and a list of problems; UsageError if the text is not YAML at all."""
    from flatout.base.plain_yaml import read_yaml  # here: it takes a while to load

    return read_yaml(text)


def remembering(cache: Path) -> ReadYaml:
    """Reads the same, and keeps it in `cache`: one value for each place."""
    folder = private_cache(cache) / "yaml"

    def read(place: Path, text: str) -> tuple[Any, list[str]]:
        kept = folder / f"{digest_of(str(place.absolute()))[:32]}.json"
        wanted = digest_of([text, _readers()])
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = read_json(kept)
            if known["of"] == wanted:
                return known["value"], []
        value, problems = plain(place, text)
        if not problems:
            _keep(kept, wanted, value)
        return value, problems

    return read


def _keep(kept: Path, wanted: str, value: Any) -> None:
    content = json.dumps({"of": wanted, "value": value})
    with suppress(OSError):  # a cache that can't be written costs time alone
        if json.loads(content)["value"] == value:  # nan is not itself
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(kept, content.encode())


def _readers() -> list[tuple[int, int]]:
    """The code that reads YAML: another version of it may read something else."""
    found = [importlib.util.find_spec(name) for name in ("flatout.base.plain_yaml", "yaml")]
    about = [os.stat(one.origin) for one in found if one is not None and one.origin is not None]
    return [(one.st_mtime_ns, one.st_size) for one in about]
