"""The learning rate of each trial of a stack at a step: schedules that are equal are computed once."""

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
        names = list(distinct)
        self._which = [names.index(repr(one.own.schedule.written)) for one in candidates]
        self._rates = torch.tensor([one.own.lr for one in candidates], dtype=torch.float64)

    def at(self, step: int) -> Tensor:
        """float64 on the host: one number for each trial."""
        group = self._group
        done = group.samples_at(step) / group.total_samples
        shares = [schedule.at(step, done, group.total_steps) for schedule in self._schedules]
        if len(shares) == 1:
            return self._rates * shares[0]
        return self._rates * torch.tensor([shares[which] for which in self._which], dtype=torch.float64)
