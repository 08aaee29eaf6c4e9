"""What was found in a project's code is not looked for again while no file of code, no name of a file and no variable changed.

Only what lies in the project can count as unchanged: code that looks elsewhere, by links or in hidden folders, is read again.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from flatout.base.files import read_json, write_bytes
from flatout.pipelines.identity.hashing import digest_of, moment
from flatout.pipelines.identity.project import CodeFiles
from flatout.pipelines.identity.remembered import is_settled
from flatout.pipelines.identity.variables import OF_A_SESSION

_CODE = (".py", ".so", ".pyd")


@dataclass(frozen=True)
class CodeFindings:
    """`parts`: names and digests; `read_files` and `variables` are looked at again each time."""

    parts: list[tuple[str, str]]
    read_files: list[str]
    variables: list[str]
    fallbacks: list[str]
    libraries: list[str]


def fingerprint(files: CodeFiles, entry: str, environment: Mapping[str, str]) -> str | None:
    """Of all that decides what is found; None where that can't be told, or changed a moment ago."""
    now_ns = time.time_ns()
    names = files.names()
    if files.has_links or files.is_cut:
        return None
    code = []
    for name, path in names.items():
        if name.endswith(_CODE):
            try:
                at = moment(path.stat())
            except OSError:
                return None
            if not is_settled(at, now_ns):
                return None
            code.append([name, *at])
    variables = sorted(item for item in environment.items() if not OF_A_SESSION.fullmatch(item[0]))
    own = sorted([path.name, path.stat().st_mtime_ns, path.stat().st_size] for path in Path(__file__).parent.glob("*.py"))
    settings = [str(files.root), entry, files.outputs, platform.python_version(), own, [_changed(place) for place in sys.path]]
    return digest_of([settings, variables, sorted(names), sorted(code)])


def recall(folder: Path, files: CodeFiles, entry: str, wanted: str) -> CodeFindings | None:
    try:
        written = read_json(_place(folder, files, entry))
        if written["fingerprint"] != wanted or time.time_ns() < written["clock_ns"]:
            return None
        found = CodeFindings(**written["findings"])
        return CodeFindings([(name, digest) for name, digest in found.parts], *list(asdict(found).values())[1:])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # it is looked for again


def keep(folder: Path, files: CodeFiles, entry: str, found: str, findings: CodeFindings) -> None:
    content = {"fingerprint": found, "clock_ns": time.time_ns(), "findings": asdict(findings)}
    place = _place(folder, files, entry)
    with suppress(OSError):  # a cache that can't be written costs time alone; inputs say so
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, json.dumps(content).encode())


def _place(folder: Path, files: CodeFiles, entry: str) -> Path:
    return folder / "code" / f"{digest_of([str(files.root), entry])[:32]}.json"


def _changed(place: str) -> tuple[str, int]:
    """A folder of packages changes when one is installed."""
    try:
        return place, os.stat(place or ".").st_mtime_ns
    except OSError:
        return place, 0
