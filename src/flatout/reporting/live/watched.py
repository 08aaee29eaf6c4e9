"""Which runs a live page shows: one, or all below a folder. New ones appear; what does not change is read only once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.base.errors import NotARun, StoreError
from flatout.store.run_folder import RunFolder, open_run, order_of

_LOOK_S = 3.0  # how often folders are searched for new runs
_DEEP = 4  # folders below folders
_MOST_FOLDERS = 20_000
_RUNNING = "running"


@dataclass(frozen=True)
class WatchedRun:
    """As it was at the last look. `name` is its path below the watched folder. `status`: of `RunFolder.status`, or `gone`."""

    name: str
    folder: RunFolder
    status: str
    created: float
    order: int
    result: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    has_begun: bool = True

    @property
    def is_running(self) -> bool:
        return self.status == _RUNNING


@dataclass
class _Known:
    """A run that was opened, and what was read of it when its files had these times."""

    folder: RunFolder
    created: float
    order: int
    has_begun: bool = False
    times: tuple[int, int] = (-1, -1)
    status: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


class Watched:
    """`root`: a folder with runs. `only`: the name of the one run below it that is shown."""

    def __init__(self, root: Path, only: str | None = None) -> None:
        self.root, self.only = root, only
        self._known: dict[str, _Known] = {}
        self._runs: tuple[WatchedRun, ...] = ()
        self._looked_s = -_LOOK_S
        self._one_at_a_time = threading.Lock()

    @property
    def is_there(self) -> bool:
        return self.root.is_dir()

    def runs(self) -> tuple[WatchedRun, ...]:
        """Oldest first."""
        with self._one_at_a_time:
            if time.monotonic() - self._looked_s >= _LOOK_S:
                self._search()
                self._looked_s = time.monotonic()
            else:
                self._runs = tuple(self._again(run) if run.is_running else run for run in self._runs)
            return self._runs

    def run(self, name: str) -> WatchedRun | None:
        return next((run for run in self.runs() if run.name == name), None)

    def _search(self) -> None:
        found = {}
        for name, path in self._folders():
            known = self._known.get(name) or _opened(path)
            if known is not None:
                found[name] = known
        self._known = found
        runs = [_looked_at(name, known) for name, known in found.items()]
        self._runs = tuple(sorted(runs, key=lambda run: (run.created, run.order)))

    def _again(self, run: WatchedRun) -> WatchedRun:
        return _looked_at(run.name, self._known[run.name])

    def _folders(self) -> Iterator[tuple[str, Path]]:
        """Folders that are runs, by their name."""
        if self.only is not None:
            yield self.only, self.root / self.only
            return
        waiting, seen = [(self.root, 0)], 0
        while waiting and seen < _MOST_FOLDERS:
            folder, deep = waiting.pop()
            for entry in _entries(folder):
                seen += 1
                path = Path(entry.path)
                if os.path.exists(path / "run.json"):
                    yield str(path.relative_to(self.root)), path
                elif deep < _DEEP:
                    waiting.append((path, deep + 1))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [one for one in entries if not one.name.startswith(".") and one.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # it vanished meanwhile, or others may not read it


def _opened(path: Path) -> _Known | None:
    """None: it is no run. A damaged one is shown, and its page says what is wrong."""
    try:
        folder = open_run(path)
        about = folder.about
        return _Known(folder, float(about["created"]), order_of(about))
    except NotARun:
        return None
    except (StoreError, OSError):
        return _Known(RunFolder(path), _changed(path / "run.json") / 1e9, 0)


def _looked_at(name: str, known: _Known) -> WatchedRun:
    folder = known.folder
    times = _changed(f"{folder.path}/events.jsonl"), _changed(f"{folder.path}/result.json")
    logs_more = times[0] > known.times[0] and times[1] == known.times[1]
    if not (known.status == _RUNNING and logs_more) and (times != known.times or known.status == _RUNNING):
        try:
            known.status, known.result, known.why = folder.status, folder.result, ""
        except (StoreError, OSError) as error:
            known.status, known.result, known.why = "damaged", {}, str(error)
        if not folder.path.is_dir():
            known.status = "gone"
    known.times = times
    known.has_begun = known.has_begun or known.status != _RUNNING or folder.begun
    return WatchedRun(name, folder, known.status, known.created, known.order, known.result, known.why, known.has_begun)


def _changed(path: Path | str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
