"""Digests of files that are not read again as long as the file system says the same of them.

A file that changed just before it was read may change once more with the same time: its digest is not remembered, as git does
it. Times that lie ahead, and a clock that was set back, are not trusted either: those files are read again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout.base.files import read_json, write_bytes
from flatout.pipelines.identity.hashing import digests_of_files, moment

_FORMAT = 1
_FINE_NS, _COARSE_NS = 100_000_000, 2_000_000_000  # how near two changes may be that have one time; some systems count seconds

Moment = tuple[int, int, int, int]


@dataclass(frozen=True)
class FileContent:
    digest: str
    bytes: int


class RememberedDigests:
    """Kept in one file, which is replaced as a whole: processes that use it at once lose at most what the other remembered."""

    def __init__(self, place: Path, notes: list[str]) -> None:
        self._place, self._notes = place, notes
        self._known = self._load()
        self._turn = threading.Lock()

    def of(self, files: Mapping[str, tuple[str, Moment]]) -> dict[str, FileContent]:
        """By name, of files with what the file system says of them now."""
        with self._turn:
            return self._of(files)

    def _of(self, files: Mapping[str, tuple[str, Moment]]) -> dict[str, FileContent]:
        began_ns = time.time_ns()
        found: dict[str, FileContent] = {}
        unknown: dict[str, str] = {}
        for name, (path, now) in files.items():
            known = self._known.get(name)
            if known is not None and known[0] == now:
                found[name] = FileContent(known[1], now[0])
            else:
                unknown[name] = path
        fresh: dict[str, tuple[Moment, str]] = {}
        for name, (about, digest) in digests_of_files(unknown).items():
            found[name] = FileContent(digest, about.st_size)
            if is_settled(moment(about), began_ns):
                fresh[name] = moment(about), digest
        if fresh or self._known.keys() - files.keys():
            self._known = {name: self._known[name] for name in files.keys() & self._known.keys()} | fresh
            self._save()
        return {name: found[name] for name in files}

    def _load(self) -> dict[str, tuple[Moment, str]]:
        try:
            written = read_json(self._place)
            if written["format"] != _FORMAT:
                return {}
            if time.time_ns() < written["clock_ns"]:
                self._notes.append("the clock was set back: inputs are read again, since times of files can't be compared")
                return {}
            return {name: ((one[0], one[1], one[2], one[3]), one[4]) for name, one in written["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
            return {}  # nothing is remembered: the files are read

    def _save(self) -> None:
        files = {name: [*at, digest] for name, (at, digest) in self._known.items()}
        try:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            content = {"format": _FORMAT, "clock_ns": time.time_ns(), "files": files}
            write_bytes(self._place, json.dumps(content).encode())
        except OSError as error:
            note = f"digests of inputs are not remembered: {self._place.parent} can't be written ({error.strerror})"
            if note not in self._notes:
                self._notes.append(note)


def is_settled(at: Moment, began_ns: int) -> bool:
    _, modified_ns, changed_ns, _ = at
    granule_ns = _FINE_NS if changed_ns % 10_000_000 else _COARSE_NS
    return changed_ns + granule_ns < began_ns and (modified_ns + granule_ns < began_ns or modified_ns > changed_ns)
