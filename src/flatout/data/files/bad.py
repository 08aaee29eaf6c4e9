"""Samples that can't be read: the first one is an error, or all of them are left out, counted and reported."""

from __future__ import annotations

from threading import Lock

from flatout.base.errors import DataError, UsageError, did_you_mean

POLICIES = ("error", "skip")
_EXAMPLES = 5


class Bad:
    """The `on_bad` policy of one data set. Report each bad sample once, from any thread."""

    def __init__(self, policy: str = "error") -> None:
        if policy not in POLICIES:
            raise UsageError(f"on_bad is 'error' or 'skip', got {policy!r}; {did_you_mean(str(policy), POLICIES)}")
        self.policy = policy
        self.examples: list[str] = []
        self._count = 0
        self._lock = Lock()

    @property
    def count(self) -> int:
        return self._count

    def found(self, where: str, why: str) -> None:
        """A bad sample at `where` (a file, a file and its row): raises under "error", counts under "skip"."""
        if self.policy == "error":
            raise DataError(f"{where}: {why}. Fix or remove it, or leave bad samples out with on_bad='skip'")
        with self._lock:
            self._count += 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append(f"{where}: {why}")

    def summary(self) -> str | None:
        """The number of samples left out, with the first few by name; None if there are none."""
        with self._lock:
            if not self._count:
                return None
            left = self._count - len(self.examples)
            more = f"; and {left} more" if left else ""
            samples = "sample was" if self._count == 1 else "samples were"
            return f"{self._count} bad {samples} left out: {'; '.join(self.examples)}{more}"
