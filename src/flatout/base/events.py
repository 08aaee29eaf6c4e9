"""Events of a run as JSON lines: append-only, one line per event, with a monotonic clock and a checksum. A torn last line is
ignored; a damaged line is reported as an event.

Observers get each event after it is written. Neither an observer nor a full disk can block or end a run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from flatout.base.sealed import append, read_lines, sealed

Event = Mapping[str, Any]
Observer = Callable[[Event], None]


KINDS = (
    "planned", "compiled", "started", "not_resumed", "rate_found", "resumed", "step", "evaluation", "checkpoint_saved",
    "checkpoint_failed", "checkpoint_refused", "checkpoint_damaged", "nonfinite", "unfroze", "rolled_back", "degraded",
    "observer_dropped", "stopped", "failed", "finished",
)  # fmt: skip
"""Of a run. Those that can be found in a damaged log, and what observers hear before there is a run, are not among them."""


class EventLog:
    """Writes events to a file and passes them to observers. With `path=None` nothing is written to disk."""

    def __init__(self, path: Path | None, observers: tuple[Observer, ...] = ()) -> None:
        self._path = path
        self._observers = list(observers)
        self._began_s = time.monotonic()
        self.lost = 0
        self._one_at_a_time = threading.RLock()  # the loop and the checkpoint writer both emit
        self._file: int | None = None
        if path is not None:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def emit(self, kind: str, /, **fields: Any) -> Event:
        event: dict[str, Any] = {"kind": kind, "t": round(time.monotonic() - self._began_s, 6), "at": round(time.time(), 3)}
        event.update(fields)
        with self._one_at_a_time:
            self._write(event)
            self._tell(event)
        return event

    def _write(self, event: Event) -> None:
        if self._file is not None:
            try:
                if not append(self._file, sealed(event)):
                    self.lost += 1
            except OSError:
                self.lost += 1  # a full disk must not end the run; the result contains this count

    def _tell(self, event: Event) -> None:
        for observer in list(self._observers):
            try:
                observer(event)
            except Exception as error:  # drop a failing observer; the run continues
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
    """All complete events of a log. Lines torn by a kill or a full disk are skipped; a damaged line becomes an event of
    kind `damaged`."""
    for line in read_lines(path, unsealed=True):  # old logs have no checksums
        if line.damage:
            why = f"line {line.number} {line.damage}: its content is missing here"
            yield {"kind": "damaged", "line": line.number, "what": path.name, "why": why}
        else:
            yield line.fields
