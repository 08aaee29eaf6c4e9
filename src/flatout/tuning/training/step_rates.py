"""The learning rate of each trial of a stack at each step: schedules that are equal are computed once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.shared import Group


class StepRates:
    def __init__(self, group: Group, candidates: Sequence[TrialCandidate]) -> None:
        self._group = group
        distinct = {repr(one.own.schedule.written): one.own.schedule for one in candidates}
        self._schedules = list(distinct.values())
        places = {name: place for place, name in enumerate(distinct)}
        self._which = torch.tensor([places[repr(one.own.schedule.written)] for one in candidates])
        self._rates = torch.tensor([one.own.lr for one in candidates], dtype=torch.float64)

    @property
    def trials(self) -> int:
        return len(self._rates)

    def table(self, start: int, stop: int) -> Tensor:
        """float64 on the host: [steps, trials]."""
        group = self._group
        shares = [
            [schedule.at(step, group.samples_at(step) / group.total_samples, group.total_steps) for schedule in self._schedules]
            for step in range(start, stop)
        ]
        known = torch.tensor(shares, dtype=torch.float64).view(stop - start, len(self._schedules))
        return self._rates * known[:, self._which]
