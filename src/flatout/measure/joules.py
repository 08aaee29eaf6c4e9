"""Where a run's energy went: joules by the rows of its ledger of time.

A meter is too slow for a single step, so it is read where one kind of work ends and another begins: before and after compiling,
evaluations and saves. Joules between two readings are shared by the time that each row took in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.measure.ledger import Ledger


class EnergyLedger:
    """`lost_s`: seconds of the run whose energy could not be read; they are not part of the joules."""

    def __init__(self, ledger: Ledger, read_j: Callable[[], float | None], least_s: float = 0.0) -> None:
        """`least_s`: shorter work is charged together with the work after it, because the meter can't tell them apart."""
        self._ledger, self._read_j, self._least_s = ledger, read_j, least_s
        self._spent_j: dict[str, float] = {}
        self._last_j = read_j()
        self._last_s = ledger.totals()
        self.lost_s = 0.0

    def read(self, *, last: bool = False) -> None:
        """Charge the energy since the last reading. Call it after a `lap` of the ledger. `last`: however short it was."""
        now_j, now_s = self._read_j(), self._ledger.totals()
        took_s = {row: spent - self._last_s[row] for row, spent in now_s.items() if spent > self._last_s[row]}
        whole_s = sum(took_s.values())
        if whole_s <= 0 or (whole_s < self._least_s and not last):
            return  # what was used since then is charged with the next reading
        if now_j is None or self._last_j is None or now_j < self._last_j:  # lower: the driver was started again
            self.lost_s += whole_s
        else:
            for row, spent_s in took_s.items():
                self._spent_j[row] = self._spent_j.get(row, 0.0) + (now_j - self._last_j) * spent_s / whole_s
        self._last_j, self._last_s = now_j, now_s

    def split(self, rows: tuple[str, ...], shares: Mapping[str, float]) -> None:
        """Move the joules of these rows to others in these shares, as the time was."""
        moved = sum(self._spent_j.pop(row, 0.0) for row in rows) if shares else 0.0
        for name, share in shares.items():
            self._spent_j[name] = self._spent_j.get(name, 0.0) + moved * share

    @property
    def joules(self) -> float | None:
        """None if no reading succeeded."""
        return sum(self._spent_j.values()) if self._spent_j else None

    def by_row(self) -> dict[str, float]:
        return {row: self._spent_j[row] for row in self._last_s if row in self._spent_j}

    def to_dict(self) -> dict[str, float]:
        """For a checkpoint."""
        return {**self.by_row(), **({"lost_s": self.lost_s} if self.lost_s else {})}

    def add(self, earlier: Mapping[str, float]) -> None:
        """What an earlier part of the run used, as `to_dict` of it returned. The ledger has its time already."""
        for row, joules in earlier.items():
            if row == "lost_s":
                self.lost_s += joules
            else:
                self._spent_j[row] = self._spent_j.get(row, 0.0) + joules
        self._last_s = self._ledger.totals()
