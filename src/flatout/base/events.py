"""What happened, as JSON lines: append-only, one line an event, with a monotonic clock. A torn last line is ignored.

Observers get each event after it is written. None of them, nor a full disk, can block or end a run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

Event = Mapping[str, Any]
Observer = Callable[[Event], None]


class EventLog:
    """Writes events to a file and hands them to observers. `path=None` keeps nothing on disk."""

    def __init__(self, path: Path | None, observers: tuple[Observer, ...] = ()) -> None:
        self._path = path
        self._observers = list(observers)
        self._began_s = time.monotonic()
        self.lost = 0
        self._one_at_a_time = threading.RLock()  # the loop and the checkpoint writer both emit
        self._file: int | None = None
        if path is not None:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            self._end_torn_line()

    def _end_torn_line(self) -> None:
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def emit(self, kind: str, /, **fields: Any) -> Event:
        event: dict[str, Any] = {"kind": kind, "t": round(time.monotonic() - self._began_s, 6), "at": round(time.time(), 3)}
        event.update(fields)
        with self._one_at_a_time:
            self._write(event)
            self._tell(event)
        return event

    def _write(self, event: Event) -> None:
        if self._file is not None:
            line = json.dumps(event, default=str, allow_nan=True).encode() + b"\n"
            try:
                if os.write(self._file, line) != len(line):
                    self.lost += 1
                    self._end_torn_line()
            except OSError:
                self.lost += 1  # a full disk must not end the run; the count is in the result

    def _tell(self, event: Event) -> None:
        for observer in list(self._observers):
            try:
                observer(event)
            except Exception as error:  # a broken view is dropped, the run goes on
                self._observers.remove(observer)
                self.emit("observer_dropped", observer=repr(observer), error=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole event of a log; lines torn by a kill or a full disk are passed over."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event
