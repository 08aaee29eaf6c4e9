"""Marks the host's activity in the profiler's trace, so that all times come from one clock.

A mark is an annotation "flatout#7"; this module maps 7 to its meaning. Outside a profiled window a mark costs one comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.autograd.profiler import record_function

from flatout.doctor import where

PREFIX = "flatout#"
# kinds of marks
DATA, COPY, READ, FORWARD, BACKWARD, LOGGING, WRITE, CHECKPOINT, STEP = (
    "data", "copy", "read", "forward", "backward", "logging", "write", "checkpoint", "step",
)  # fmt: skip


@dataclass(frozen=True)
class Mark:
    kind: str
    where: str
    note: str = ""


@dataclass
class Marks:
    recording: bool = False
    known: list[Mark] = field(default_factory=list)
    _numbers: dict[Mark, int] = field(default_factory=dict)

    @contextmanager
    def mark(self, kind: str, note: str = "") -> Iterator[None]:
        if not self.recording:
            yield
            return
        with record_function(self._name(Mark(kind, where.caller(), note))):
            yield

    def begin(self, kind: str, note: str = "") -> record_function | None:
        """For hooks that come in pairs; the caller ends it with `__exit__`."""
        if not self.recording:
            return None
        open_mark = record_function(self._name(Mark(kind, where.caller(), note)))
        open_mark.__enter__()
        return open_mark

    def _name(self, mark: Mark) -> str:
        number = self._numbers.get(mark)
        if number is None:
            number = self._numbers[mark] = len(self.known)
            self.known.append(mark)
        return f"{PREFIX}{number}"
