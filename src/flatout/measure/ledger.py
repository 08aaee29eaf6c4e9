"""Where the time of a run went. Every moment belongs to exactly one row, so the rows add up to wall time by construction."""

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
_COLUMNS = (
    TableColumn("row", "where the time went"),
    TableColumn("seconds", "time", right=True),
    TableColumn("share", "share", right=True),
)


class Ledger:
    """`lap(row)` charges the time since the previous lap to `row`. Figures cover everything up to the last lap."""

    __slots__ = ("_before_s", "_began_s", "_clock", "_previous_s", "_spent_s")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spent_s = dict.fromkeys(ROWS, 0.0)
        self._before_s = 0.0
        self._began_s = self._previous_s = clock()

    def start(self) -> None:
        """Begin now. What was charged before is kept; the time since the last lap is nobody's."""
        self._before_s = self.wall_s
        self._began_s = self._previous_s = self._clock()

    def lap(self, row: str) -> None:
        now_s = self._clock()
        try:  # called several times a step: a failed lookup is caught instead of asked about first
            self._spent_s[row] += now_s - self._previous_s
        except KeyError:
            raise _unknown(row) from None
        self._previous_s = now_s

    def split(self, row: str, shares: Mapping[str, float]) -> None:
        """Move shares of what `row` has been charged to other rows; what the shares leave over stays."""
        for name in (row, *shares):
            if name not in self._spent_s:
                raise _unknown(name)
        if min(shares.values(), default=0) < 0 or sum(shares.values()) > 1 + 1e-9:
            raise UsageError(f"shares of {row!r} must be at least 0 and at most 1 together, got {dict(shares)}")
        whole_s = self._spent_s[row]
        for name, share in shares.items():
            moved_s = min(whole_s * share, self._spent_s[row])  # rounding must not overdraw
            self._spent_s[row] -= moved_s
            self._spent_s[name] += moved_s

    @property
    def wall_s(self) -> float:
        """Read from the clock, not from the rows: that they agree is what a test can check."""
        return self._before_s + self._previous_s - self._began_s

    def totals(self) -> dict[str, float]:
        """Seconds of every row, in the order of ROWS."""
        return dict(self._spent_s)

    def to_dict(self) -> dict[str, float]:
        """For a checkpoint; `add` of it in a resumed run goes on where this one stopped."""
        return {row: spent_s for row, spent_s in self._spent_s.items() if spent_s}

    def add(self, earlier: Mapping[str, float]) -> None:
        """Count in what `to_dict` of an earlier part of the run said."""
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
        return Doc((Fields({"wall_s": wall_s}), table, TextLine(f"{show_seconds(wall_s)} of wall time in all")))


def _row(row: str, spent_s: float, wall_s: float) -> dict[str, Cell | str]:
    return {"row": row, "seconds": Cell(spent_s, show_seconds(spent_s)), "share": _share(spent_s, wall_s)}


def _share(part_s: float, whole_s: float) -> Cell:
    share = part_s / whole_s if whole_s else 0.0
    return Cell(share, f"{share:.1%}" if share >= 0.001 else "<0.1%")


def _unknown(row: str) -> UsageError:
    return UsageError(f"the ledger has no row {row!r}; {did_you_mean(row, ROWS)}")
