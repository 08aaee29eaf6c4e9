"""Starts a process for each tracker of a run, and at the end of the run waits a little for them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flatout.base.child import Child, Printed
from flatout.base.events import Event, Observer
from flatout.tracking.asked import Track
from flatout.tracking.follow import unsent

WAIT_S, WAIT_AFTER_ERROR_S = 10.0, 3.0
_LOOK_EVERY_S = 10.0
Say = Callable[[str], None]


@contextmanager
def tracking(tracks: Sequence[Track], runs: Path, say: Say) -> Iterator[tuple[Observer, ...]]:
    """Observers of a run that start its trackers. `say` gets a warning when one does not work; the run goes on."""
    if not tracks:
        yield ()
        return
    started = Trackers(tracks, runs, say)
    wait_s = WAIT_AFTER_ERROR_S
    try:
        yield (started,)
        wait_s = WAIT_S
    finally:
        started.close(wait_s)


class Trackers:
    def __init__(self, tracks: Sequence[Track], runs: Path, say: Say) -> None:
        self._runs, self._say, self._looked_s = runs, say, time.monotonic()
        self._tracks = [track for track in tracks if not self._is_missing(track)]
        self._running: dict[Track, tuple[Child, int]] = {}
        self._folder: Path | None = None

    def __call__(self, event: Event) -> None:
        if event["kind"] == "planned" and self._folder is None:
            self._folder = self._runs / event["run"]
            for track in self._tracks:
                self._start(track, self._folder)
        elif self._running and time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            for track, (child, line) in list(self._running.items()):
                if child.wait(0) is not None:
                    self._over(track, child, line)

    def close(self, wait_s: float) -> None:
        """Tell the trackers that the run has ended, and wait until they have sent everything, at most that long in all."""
        for _, line in self._running.values():
            with suppress(OSError):
                os.write(line, b"ended")
        ends_s = time.monotonic() + wait_s
        for track, (child, line) in list(self._running.items()):
            if child.wait(max(0.0, ends_s - time.monotonic())) is None:
                child.end()
                os.close(line)
                del self._running[track]
                self._warn(track, f"did not end within {wait_s:g} s")
            else:
                self._over(track, child, line)

    def _is_missing(self, track: Track) -> bool:
        why = track.why_not()
        if why:
            self._say(
                f"tracker {track}: {why}. The run goes on without it; `flatout runs track RUN --track {track}` sends it later"
            )
        return bool(why)

    def _start(self, track: Track, folder: Path) -> None:
        told = {"track": [track.name, track.target], "folder": str(folder.resolve()), "path": sys.path}
        ear, line = os.pipe()
        try:
            command = [sys.executable, "-m", "flatout.cli.tracker", str(ear)]
            child = Child(command, given=json.dumps(told), output=Printed.DROPPED, passed=(ear,))
        except OSError as error:
            os.close(line)
            self._warn(track, f"could not be started: {error}")
            return
        finally:
            os.close(ear)
        self._running[track] = child, line

    def _over(self, track: Track, child: Child, line: int) -> None:
        del self._running[track]
        os.close(line)
        if child.wait(0) not in (0, -signal.SIGTERM):
            self._warn(track, child.how_it_ended())

    def _warn(self, track: Track, why: str) -> None:
        assert self._folder is not None
        missing = unsent(self._folder, track)
        lost = f"{missing} log points were not sent. " if missing else ""
        again = f"`flatout runs track {self._folder} --track {track}` sends the rest"
        self._say(f"tracker {track}: {why}. {lost}The run is not affected; {again}")
