"""The work of a tracker's process: it reads the log of a run as it grows, and hands the numbers to the tracker.

The run knows nothing of it: nothing is sent to this process, so it can't keep the run waiting. Where it has read to is kept in
the run's folder, so that a run that is resumed goes on in the same place of the same tracker.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.base.events import Event
from flatout.base.sealed import read_line
from flatout.tracking.asked import Track
from flatout.tracking.tracker import STATUS, TrackedRun, Tracker, numbers_of

EVERY_S = 0.5
_PAUSES_S = (1.0, 3.0, 9.0)  # before a failed call is tried again
_BLOCK = 1 << 20
_FOLDER = "tracking"


class SentSoFar:
    """How far a tracker has come with a run, and what it needs to go on."""

    def __init__(self, folder: Path, track: Track) -> None:
        self._path, self._track = folder / _FOLDER / f"{track.name}.json", track
        self.offset, self.kept = 0, dict[str, Any]()
        with suppress(OSError, ValueError, KeyError, TypeError):
            written = json.loads(self._path.read_text())
            if written["target"] == track.target:  # another server knows nothing of the run
                self.offset, self.kept = int(written["offset"]), dict(written["kept"])

    def save(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        aside = self._path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"target": self._track.target, "offset": self.offset, "kept": self.kept}))
        os.replace(aside, self._path)


def follow(tracker: Tracker, track: Track, folder: Path, ended: Callable[[], bool], *, patient: bool = True) -> int:
    """Returns how many moments were sent. `ended`: whether the run has ended, so that nothing more comes. Not `patient`: a call
    that fails is not tried again."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is gone: the run was moved or deleted")
    place, log = SentSoFar(folder, track), folder / "events.jsonl"
    pauses = _PAUSES_S if patient else ()
    run = TrackedRun(folder.name, folder.resolve(), _parameters(folder), place.kept)
    place.kept = dict(_insist(lambda: tracker.begin(run), pauses))
    try:
        place.save()
        return _follow(tracker, place, log, ended, pauses)
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            tracker.end("running")
        raise


def _follow(tracker: Tracker, place: SentSoFar, log: Path, ended: Callable[[], bool], pauses: tuple[float, ...]) -> int:
    count, status = 0, "running"
    while True:
        is_last = ended()  # asked before reading: what was written before that is read
        for block, offset in _blocks(log, place.offset):
            events = list(_events(block))
            status = next((STATUS[kind] for one in reversed(events) if (kind := one.get("kind")) in STATUS), status)
            numbers = [found for one in events if (found := numbers_of(one)) is not None]
            if numbers:
                _insist(lambda: tracker.log(numbers), pauses)  # noqa: B023  called at once
                count += len(numbers)
            place.offset = offset
            place.save()
        if is_last:
            tracker.end(status)
            return count
        time.sleep(EVERY_S)


def unsent(folder: Path, track: Track) -> int:
    """Moments of the log that the tracker has not got."""
    with suppress(OSError):
        blocks = _blocks(folder / "events.jsonl", SentSoFar(folder, track).offset)
        return sum(numbers_of(event) is not None for block, _ in blocks for event in _events(block))
    return 0


def _insist(call: Callable[[], Any], pauses: tuple[float, ...]) -> Any:
    """A server may be away for some seconds."""
    for pause_s in pauses:
        try:
            return call()
        except ImportError:
            raise
        except Exception:
            time.sleep(pause_s)
    return call()


def _blocks(log: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Whole lines from there on, and where they end."""
    with log.open("rb") as file:
        while True:
            file.seek(offset)
            read = file.read(_BLOCK)
            whole = read[: read.rfind(b"\n") + 1]
            if not whole:
                return
            offset += len(whole)
            yield whole, offset


def _events(block: bytes) -> Iterator[Event]:
    """Torn and damaged lines are left out."""
    for line in block.splitlines(keepends=True):
        found = read_line(0, line, unsealed=True)
        if found is not None and found.fields:
            yield found.fields


def _parameters(folder: Path) -> dict[str, str]:
    """The recipe and the settings of the plan, as names and texts."""
    found: dict[str, str] = {}
    for name, inside in (("recipe.json", None), ("plan.json", "settings")):
        with suppress(OSError, ValueError, AttributeError):
            written = json.loads((folder / name).read_bytes())
            found |= _flat(written if inside is None else {inside: written.get(inside) or {}})
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        elif value not in (None, "", {}, []):
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return flat
