"""Gains of optimisations for this job's step: measured on this machine, else the usual ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import nn

from flatout.base.specs import Spec
from flatout.engine.job import Job
from flatout.engine.optimizers import build_optimizer
from flatout.engine.settings import Settings, with_values
from flatout.engine.update import guarded_update
from flatout.machine.comparisons import channels_last, channels_last_key, fused_key, fused_update
from flatout.machine.gains import Gain, GainComparison, Way
from flatout.machine.optimisations import CHANNELS_LAST, FUSED_OPTIMIZER, Optimisation
from flatout.measure.counts import Operation
from flatout.measure.groups import CONVOLUTIONS, UPDATE
from flatout.plan.situation import Situation
from flatout.plan.work import work_of


def comparisons_of(job: Job, device: torch.device, precisions: tuple[str, ...]) -> Iterator[GainComparison]:
    """The comparisons that the knobs need, for a step in each of these precisions."""
    for precision in precisions:
        with suppress(Exception):  # the convolutions of a model that can't be traced are unknown
            if (turned := channels_last(device, _convolutions(job, device, precision, to_call=True))) is not None:
                yield turned
    if (fused := _fused(job, device)) is not None:  # last, because the first update of a process may import for seconds
        yield fused


def channels_last_gain(s: Situation, now: Settings) -> float | None:
    """Speed-up of a step; None: unknown."""
    key = ""
    if s.ceilings is not None and s.ceilings.gains:  # else tracing the step would be useless
        with suppress(Exception):
            key = channels_last_key(s.device, _convolutions(s.job, s.device, now.precision))
    return _of_step(s, CHANNELS_LAST, key, CONVOLUTIONS)


def fused_gain(s: Situation) -> float | None:
    """Speed-up of a step; None: unknown."""
    return _of_step(s, FUSED_OPTIMIZER, fused_key(s.device, _kind(s.job), _sizes(s.job)), UPDATE)


def _of_step(s: Situation, optimisation: Optimisation, key: str, group: str) -> float | None:
    measured = None if s.ceilings is None else s.ceilings.gains.get(key)
    share = _share(s, group)
    if measured is None or share is None:
        return optimisation.usual_of_step.get(s.device.type)
    return Gain(measured, measured=True).of_step(share)


def _share(s: Situation, group: str) -> float | None:
    if not s.plain.step_s or not s.plain.groups:
        return None
    return min(1.0, sum(one.seconds for one in s.plain.groups if one.name == group) / s.plain.step_s)


def _convolutions(job: Job, device: torch.device, precision: str, *, to_call: bool = False) -> list[Operation]:
    work = work_of(job, with_values(Settings(device=str(device)), {"precision": precision}), to_call=to_call)
    return [one for one in work.operations if one.group == CONVOLUTIONS]


def _fused(job: Job, device: torch.device) -> GainComparison | None:
    if not isinstance(job.optimizer, Spec):
        return None

    def make(weights: list[nn.Parameter], fused: bool) -> Way:
        groups = [{"params": weights, "weight_decay": job.weight_decay, "factor": 1.0}]
        optimizer = build_optimizer(job.optimizer, groups, job.lr, fused=fused, graph=False, device=device)
        guarded, norm = guarded_update(optimizer, device), torch.ones((), device=device)
        return optimizer.step if guarded is None else lambda: guarded(norm)

    dtype = next(job.model.parameters()).dtype
    return fused_update(device, _kind(job), _sizes(job), dtype, make)


def _kind(job: Job) -> str:
    return f"{job.optimizer} {job.weight_decay} {next(job.model.parameters()).dtype}"


def _sizes(job: Job) -> list[int]:
    return [weights.numel() for weights in job.model.parameters() if weights.requires_grad]
