"""The budget of a whole study: time, money or energy, over all its sittings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from flatout.base.budget import Budget
from flatout.base.errors import MachineError, UsageError
from flatout.base.units import show_seconds
from flatout.machine.meters import Meters


@dataclass(frozen=True)
class Spent:
    seconds: float = 0.0
    joules: float = 0.0


def check_budget(budget: Budget | None, price_per_hour: float | None) -> None:
    if budget is not None and budget.counted:
        raise UsageError(
            f"--budget of a study is time, money or energy, such as '10 min'; got {budget}: --trials limits their number"
        )
    if budget is not None and budget.unit == "usd" and not price_per_hour:
        raise UsageError(f"the budget {budget} needs a price: set price_per_hour, the cost of this machine in USD per hour")


class Spending:
    def __init__(
        self,
        budget: Budget | None,
        devices: Sequence[torch.device],
        price_per_hour: float | None,
        before: Spent = Spent(),  # noqa: B008  frozen
        clock: Callable[[], float] = time.monotonic,
        since_s: float | None = None,
    ) -> None:
        """`devices`: those whose energy counts. `before`: what earlier sittings of the study used. Without a budget nothing
        limits it but the number of trials. `since_s`: by the clock, when this sitting began; None: now."""
        self.budget, self._before, self._clock, self._price = budget, before, clock, price_per_hour
        self._began_s = clock() if since_s is None else since_s
        self._meters = [Meters(device) for device in devices] if budget is not None and budget.unit == "wh" else []
        self._began_j = 0.0
        check_budget(budget, price_per_hour)
        for meters in self._meters:
            if meters.read().energy_j is None:
                raise MachineError(f"the budget {budget} can't be counted here: {meters.why_unavailable}; use time")
        self._began_j = self._joules()

    @property
    def spent(self) -> Spent:
        joules = max(0.0, self._joules() - self._began_j)
        return Spent(self._before.seconds + self._clock() - self._began_s, self._before.joules + joules)

    def _joules(self) -> float:
        return math.fsum(meters.read().energy_j or 0.0 for meters in self._meters)

    def share(self, spent: Spent | None = None) -> float:
        """Of the budget; 0 without one."""
        if self.budget is None:
            return 0.0
        now = self.spent if spent is None else spent
        used = {"seconds": now.seconds, "usd": now.seconds / 3600 * (self._price or 0.0), "wh": now.joules / 3600}
        return used[self.budget.unit] / self.budget.amount

    @property
    def seconds(self) -> float | None:
        """The budget as time; None: there is none, or it is energy."""
        if self.budget is None or self.budget.unit == "wh":
            return None
        return self.budget.amount if self.budget.unit == "seconds" else self.budget.amount / (self._price or 1.0) * 3600

    def share_of_seconds(self, seconds: float) -> float:
        """About the share of the budget that this much training takes."""
        if self.budget is None:
            return 0.0
        if (whole := self.seconds) is not None:
            return seconds / whole
        used = self.spent
        return seconds * used.joules / max(used.seconds, 1e-9) / 3600 / self.budget.amount

    @property
    def words(self) -> str:
        spent = self.spent
        return f"{show_seconds(spent.seconds)}" + (f" of {self.budget}" if self.budget is not None else "")
