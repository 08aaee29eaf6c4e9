"""Samples that can't be read: the first one is an error, or all of them are left out, counted and reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock

from flatout.base.errors import DataError, UsageError, did_you_mean

_EXAMPLES = 5


class OnBad(StrEnum):
    """The option `on_bad`. `OnBad("skip")` checks what a user wrote: UsageError for any other word."""

    ERROR = "error"
    SKIP = "skip"

    @classmethod
    def _missing_(cls, value: object) -> OnBad:
        raise UsageError(f"on_bad is 'error' or 'skip', got {value!r}; {did_you_mean(str(value), map(str, cls))}")


@dataclass(eq=False)
class Bad:
    """The bad samples of one data set. Report each once, from any thread."""

    policy: OnBad = OnBad.ERROR
    examples: list[str] = field(default_factory=list, init=False)
    count: int = field(default=0, init=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def found(self, where: str, why: str) -> None:
        """A bad sample at `where` (a file, a file and its row): raises under "error", counts under "skip"."""
        if self.policy == OnBad.ERROR:
            raise DataError(f"{where}: {why}. Fix or remove it, or leave bad samples out with on_bad='skip'")
        with self._lock:
            self.count += 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append(f"{where}: {why}")

    def summary(self) -> str | None:
        """The number of samples left out, with the first few by name; None if there are none."""
        with self._lock:
            if not self.count:
                return None
            left = self.count - len(self.examples)
            more = f"; and {left} more" if left else ""
            samples = "sample was" if self.count == 1 else "samples were"
            return f"{self.count} bad {samples} left out: {'; '.join(self.examples)}{more}"
