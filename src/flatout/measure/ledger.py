"""Where a run's time went. Every moment is charged to exactly one row, so the rows add up to wall time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_seconds

ROWS = (
    "setup",
    "compile",
    "data",
    "forward",
    "backward",
    "optimizer",
    "step",
    "device wait",
    "logging",
    "evaluation",
    "checkpoint",
    "unattributed",
)
TRAINING_ROWS = ("data", "forward", "backward", "optimizer", "step", "device wait", "logging")
_COLUMNS = (
    TableColumn("row", "where the time went"),
    TableColumn("seconds", "time", right=True),
    TableColumn("share", "share", right=True),
)


class Ledger:
    """`lap(row)` charges the time since the previous lap to `row`. All figures cover the time up to the last lap."""

    __slots__ = ("_before_s", "_began_s", "_clock", "_previous_s", "_spent_s")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spent_s = dict.fromkeys(ROWS, 0.0)
        self._before_s = 0.0
        self._began_s = self._previous_s = clock()

    def start(self) -> None:
        """Start the clock now. Earlier charges stay; the time since the last lap is not charged."""
        self._before_s = self.wall_s
        self._began_s = self._previous_s = self._clock()

    def lap(self, row: str) -> None:
        now_s = self._clock()
        try:  # called several times a step, and try is faster than checking first
            self._spent_s[row] += now_s - self._previous_s
        except KeyError:
            raise _unknown(row) from None
        self._previous_s = now_s

    def split(self, row: str, shares: Mapping[str, float]) -> None:
        """Move shares of `row`'s time to other rows; the rest stays in `row`."""
        for name in (row, *shares):
            if name not in self._spent_s:
                raise _unknown(name)
        if min(shares.values(), default=0) < 0 or sum(shares.values()) > 1 + 1e-9:
            raise UsageError(f"shares of {row!r} must be at least 0 each and at most 1 in total, got {dict(shares)}")
        whole_s = self._spent_s[row]
        for name, share in shares.items():
            moved_s = min(whole_s * share, self._spent_s[row])  # rounding must not make it negative
            self._spent_s[row] -= moved_s
            self._spent_s[name] += moved_s

    @property
    def wall_s(self) -> float:
        """Read from the clock, not from the rows, so that a test can compare the two."""
        return self._before_s + self._previous_s - self._began_s

    def totals(self) -> dict[str, float]:
        """Seconds of every row, in the order of ROWS."""
        return dict(self._spent_s)

    def to_dict(self) -> dict[str, float]:
        """For a checkpoint: a resumed run continues with `add` of it."""
        return {row: spent_s for row, spent_s in self._spent_s.items() if spent_s}

    def add(self, earlier: Mapping[str, float]) -> None:
        """Add the times that `to_dict` of an earlier part of the run returned."""
        for row, spent_s in earlier.items():
            if row not in self._spent_s:
                raise _unknown(row)
            self._spent_s[row] += spent_s
            self._before_s += spent_s

    def doc(self) -> Doc:
        wall_s = self.wall_s
        spent = [_row(row, spent_s, wall_s) for row, spent_s in self._spent_s.items() if spent_s]
        unused = [_row(row, spent_s, wall_s) for row, spent_s in self._spent_s.items() if not spent_s]
        table = Table("ledger", _COLUMNS, spent, fold=unused, fold_note="rows took no time")
        return Doc((Fields({"wall_s": wall_s}), table, TextLine(f"{show_seconds(wall_s)} of wall time in total")))


def _row(row: str, spent_s: float, wall_s: float) -> dict[str, Cell | str]:
    return {"row": row, "seconds": Cell(spent_s, show_seconds(spent_s)), "share": _share(spent_s, wall_s)}


def _share(part_s: float, whole_s: float) -> Cell:
    share = part_s / whole_s if whole_s else 0.0
    return Cell(share, f"{share:.1%}" if share >= 0.001 else "<0.1%")


def _unknown(row: str) -> UsageError:
    return UsageError(f"the ledger has no row {row!r}; {did_you_mean(row, ROWS)}")
