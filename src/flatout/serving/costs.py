"""What a batch costs by its rows: the measured curve, corrected by what batches really took."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_ENOUGH = 0.95  # of the best rate: larger batches only make requests wait
_CLEARLY_LESS, _AS_FAST = 0.9, 0.97
_CLEAR_GAIN = 1.1
_SLOWEST, _QUICKEST = 5.0, 0.2  # one odd batch counts for no more than this, times what was expected
_NEWEST = 0.05  # the weight of the last batch
_TRUSTED = 4  # batches of a size until it has a correction of its own
_NONE = (1.0, 0.0, 0)
_AGAIN = 64  # batches until the useful size is looked for again
_STALE = 4096  # batches of other sizes: by then requests may be of another kind, and what a size took before proves nothing


class CostCurve:
    """Between two measured sizes the cost is a straight line; beyond the last it grows with the rows.

    `largest` is the largest batch that may be run; `full_rows` the one beyond which the rate hardly grows.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """`points` are (rows, seconds), sorted; the last is the largest batch."""
        self._rows = [rows for rows, _ in points]
        self._seconds = [max(seconds, 1e-9) for _, seconds in points]
        self.largest = self._rows[-1]
        self._base: dict[int, float] = {}
        self._seen = 0
        self._corrections: dict[int, tuple[float, float, int]] = {}  # by the size's power of two: factor, extra_s, batches
        self._trusted: list[int] = []  # those with enough batches
        self._extras: dict[int, float] = {}  # of sizes without a correction of their own
        self._last_run: dict[int, int] = {}  # by the size's power of two: how many batches there had been
        self.full_rows = 0
        self.spread = 0.1  # mean distance from what was expected, as a share of it
        self._find_full()

    def seconds(self, rows: int) -> float:
        size = (rows - 1).bit_length()
        factor, _, seen = self._corrections.get(size, _NONE)
        if seen >= _TRUSTED:
            return self._measured(rows) * factor
        return self._measured(rows) + self._extra_s(size)

    def _extra_s(self, size: int) -> float:
        """What the nearest size that was run took longer than measured. Most of that is work which any batch has: a factor
        of small batches would make large ones look too slow to be tried."""
        found = self._extras.get(size)
        if found is None:
            nearest = min(self._trusted, key=lambda other: abs(other - size), default=None)
            found = self._extras[size] = 0.0 if nearest is None else max(0.0, self._corrections[nearest][1])
        return found

    def rows_per_s(self, rows: int) -> float:
        return rows / self.seconds(rows)

    def fixed_s(self, rows: int) -> float:
        """The part of the cost that is the same for twice the rows."""
        return max(0.0, 2 * self.seconds(rows) - self.seconds(2 * rows))

    def rows_within(self, seconds: float) -> int:
        """The largest power of two, up to the largest batch, that ends in time; 0 if none does."""
        found, rows = 0, 1
        while rows <= self.largest and self.seconds(rows) <= seconds:
            found, rows = rows, 2 * rows
        return found

    def thrifty_rows(self, rows: int) -> int:
        """How many of these rows to run first: fewer than all if a runtime pads batches, and a smaller size is clearly faster
        for each row. 23 rows that are run as 64 take longer than 16 and then 7."""
        found, best = rows, _CLEAR_GAIN * self.rows_per_s(rows)
        for size in self._rows[: bisect_left(self._rows, rows)]:
            rate = self.rows_per_s(size)
            if rate > best:
                found, best = size, rate
        return found

    def took(self, rows: int, seconds: float) -> None:
        """A batch of `rows` was run and took this long."""
        measured = self._measured(rows)
        size = (rows - 1).bit_length()
        factor, extra_s, seen = self._corrections.get(size, _NONE)
        if seen:
            expected_s = measured * factor
            seconds = min(max(seconds, _QUICKEST * expected_s), _SLOWEST * expected_s)
            self.spread += _NEWEST * (abs(seconds / expected_s - 1) - self.spread)
        weight = max(_NEWEST, 1 / (seen + 1))
        factor += weight * (seconds / measured - factor)
        extra_s += weight * (seconds - measured - extra_s)
        self._corrections[size] = (factor, extra_s, seen + 1)
        if seen + 1 == _TRUSTED:
            self._trusted.append(size)
        self._extras.clear()
        self._seen += 1
        self._last_run[size] = self._seen
        if self._seen % _AGAIN == 0:
            self._forget_stale()
            self._find_full()

    def _forget_stale(self) -> None:
        """A size that once was slow would never be run again, and so never be seen to be fast."""
        for size in [one for one, last in self._last_run.items() if self._seen - last > _STALE]:
            del self._last_run[size], self._corrections[size]
        self._trusted = [size for size, (_, _, seen) in self._corrections.items() if seen >= _TRUSTED]

    def limit(self, largest: int) -> None:
        """Larger batches are not run any more."""
        self.largest = max(1, min(largest, self.largest))
        self._find_full()

    def points(self) -> list[tuple[int, float]]:
        """As they are now, after correction."""
        return [(rows, self.seconds(rows)) for rows in self._rows if rows <= self.largest] or [(1, self.seconds(1))]

    def _measured(self, rows: int) -> float:
        known = self._base.get(rows)
        if known is not None:
            return known
        after = bisect_left(self._rows, rows)
        if after == len(self._rows):
            seconds = self._seconds[-1] * rows / self._rows[-1]
        elif after == 0 or self._rows[after] == rows:
            seconds = self._seconds[after]
        else:
            low, high = self._rows[after - 1], self._rows[after]
            share = (rows - low) / (high - low)
            seconds = self._seconds[after - 1] + share * (self._seconds[after] - self._seconds[after - 1])
        if rows <= 2 * self._rows[-1]:
            self._base[rows] = seconds
        return seconds

    def _find_full(self) -> None:
        sizes = [1]
        while 2 * sizes[-1] <= self.largest:
            sizes.append(2 * sizes[-1])
        rates = {rows: self.rows_per_s(rows) for rows in sizes}
        best = max(rates.values())
        found = next(rows for rows in sizes if rates[rows] >= _ENOUGH * best)
        now = rates.get(self.full_rows, 0.0)
        # a size that swings to and fro makes predictions wrong: it only changes for a clear gain
        if (
            (found > self.full_rows and now < _CLEARLY_LESS * best)
            or (found < self.full_rows and rates[found] >= _AS_FAST * best)
            or not now
        ):
            self.full_rows = found
