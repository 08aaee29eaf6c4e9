"""The end of a log that is being written: what came since it was last looked at. Reading it changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from flatout.base.events import Event
from flatout.base.sealed import read_line
from flatout.reporting.live.step_lines import StepLines, is_step

_EDGE_BYTES = 32 << 10
_MOST_BYTES = 4 << 20  # further behind, reading the whole log for its curves is less work


class LogTail:
    """`offset` is where the last whole line ended that was read. A page that knows it can go on from there."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._name = str(path)
        self._steps = StepLines()

    def read(self) -> list[Event] | None:
        """Whole lines only: a line that is still being written comes later. None: it is not possible to go on from `offset`,
        as the log is another one or much has come. OSError: the log is gone. Of log points in a row only the last one has all
        of its fields; the others have those of curves."""
        if not self._has_more():
            return []
        with open(self._name, "rb") as log:
            size = os.fstat(log.fileno()).st_size
            if not self.offset <= size <= self.offset + _MOST_BYTES:
                return None
            log.seek(max(0, self.offset - 1))
            if self.offset and log.read(1) != b"\n":
                return None
            block = log.read(size - self.offset)
        whole = block[: block.rfind(b"\n") + 1]
        self.offset += len(whole)
        return list(self._events(whole.splitlines(keepends=True)))

    def _events(self, lines: Sequence[bytes]) -> Iterator[Event]:
        for line, following in zip_longest(lines, lines[1:], fillvalue=b""):
            if is_step(line) and is_step(following) and (thin := self._steps.curve_fields(line)) is not None:
                yield thin
            elif (event := _event(line)) is not None:
                self._steps.learn(event)
                yield event

    def _has_more(self) -> bool:
        try:
            return os.stat(self._name).st_size != self.offset
        except FileNotFoundError:
            if self.offset == 0 and self.path.parent.is_dir():
                return False  # a run that has not begun to log
            raise


def edges(path: Path) -> list[Event]:
    """The first events of a log and the last ones. Empty if there is none."""
    try:
        with path.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            first = log.read(min(size, _EDGE_BYTES))
            log.seek(max(len(first), size - _EDGE_BYTES))
            last = log.read(_EDGE_BYTES)
    except OSError:
        return []
    lines = [*first.split(b"\n")[:-1], *last.split(b"\n")[1:-1]] if last else first.split(b"\n")[:-1]
    return [event for line in lines if (event := _event(line + b"\n")) is not None]


def _event(line: bytes) -> Event | None:
    """None: it was cut short by a kill. Which line is damaged is said by whoever reads the whole log."""
    found = read_line(0, line, unsealed=True)
    if found is None:
        return None
    return {"kind": "damaged"} if found.damage else found.fields
