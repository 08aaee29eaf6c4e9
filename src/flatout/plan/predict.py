"""Predicts the time of a step: its work, counted on tensors without data, divided by this machine's measured rates.

An operator takes the time of its arithmetic or of its memory traffic, whichever is longer, plus the call. A CPU calls and
computes in turns. With a GPU, calls, computing, copying batches and reading rows overlap: the longest of the four is the step.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.ceilings import Ceilings
from flatout.measure.counts import Operation, fuse
from flatout.measure.groups import GROUPS
from flatout.plan.costs import Cost, Rates
from flatout.plan.prediction import BOUNDS, COMPUTE, INPUT, LAUNCH, MEMORY, TRANSFER, OperatorGroup, Prediction
from flatout.plan.work import StepWork, work_of

Times = dict[str, float]  # seconds by bound


def predict(job: Job, settings: Settings, ceilings: Ceilings | None, *, input_rows_per_s: float | None = None) -> Prediction:
    """`input_rows_per_s`: measured rate of reading rows, if known."""
    found = _predict(job, settings, ceilings, input_rows_per_s)
    idle_w = None if ceilings is None else ceilings.idle_w
    return found if idle_w is None else replace(found, idle_w=idle_w.value)


def _predict(job: Job, settings: Settings, ceilings: Ceilings | None, input_rows_per_s: float | None) -> Prediction:
    try:
        work = work_of(job, settings)
    except Exception as error:  # a forward that depends on values can't be traced: no prediction, with the reason
        return Prediction(reason=f"the model can't be traced without data ({type(error).__name__})")
    if ceilings is None:
        return Prediction(flops_per_sample=work.flops_per_sample, reason="this machine is not measured yet; run: flatout probe")
    groups, device, calls_s = _add_up(work, settings, ceilings)
    input_s = work.rows * work.parts / input_rows_per_s if input_rows_per_s else 0.0
    lanes: list[Times] = [device, {LAUNCH: calls_s}, {TRANSFER: _transfer_s(work, settings, ceilings)}, {INPUT: input_s}]
    longest = max(lanes, key=lambda lane: sum(lane.values()))
    step_s = sum(longest.values())
    if not step_s:
        return Prediction(flops_per_sample=work.flops_per_sample, reason="no ceiling of this machine could be measured")
    shares = {bound: longest.get(bound, 0.0) / step_s for bound in BOUNDS}
    measured = "bf16" if settings.precision == "fp8" else settings.precision  # only some layers use 8 bits
    ceiling = ceilings.matmul_flops.get(measured) or ceilings.matmul_flops.get("fp32")
    return Prediction(
        step_s=step_s,
        flops_per_sample=work.flops_per_sample,
        ceiling_flops=ceiling.value if ceiling else None,
        bound=max(shares, key=lambda bound: shares[bound]),
        share=work.counts.flops * work.parts / step_s / ceiling.value if ceiling else None,
        ceiling_bytes_per_s=ceilings.copy_bytes_per_s.value if ceilings.copy_bytes_per_s else None,
        shares=shares,
        groups=groups,
        calls_s=calls_s,
    )


def _add_up(work: StepWork, settings: Settings, ceilings: Ceilings) -> tuple[tuple[OperatorGroup, ...], Times, float]:
    """Totals by group, on the device by bound, and the time of calls that the host makes ahead (else 0)."""
    rates = Rates.of(ceilings, settings)
    totals = {name: _Total() for name in GROUPS}
    repeated = work.counts.operations if settings.compile == "off" else fuse(work.counts.operations)
    for one in repeated:
        totals[one.group].add(one, rates.cost(one), work.parts)
    for one in work.around:
        totals[one.group].add(one, rates.cost(one))
    calls_s = rates.entry_s * work.parts + sum(total.call_s for total in totals.values())
    device = {bound: sum(total.times[bound] for total in totals.values()) for bound in (COMPUTE, MEMORY, LAUNCH)}
    by_turns = torch.device(settings.device).type == "cpu"
    groups = tuple(total.group(name, by_turns) for name, total in totals.items() if total.operators)
    if by_turns:
        device[LAUNCH] += calls_s
    return groups, device, 0.0 if by_turns else calls_s


class _Total:
    def __init__(self) -> None:
        self.flops = self.bytes = self.operators = self.call_s = 0.0
        self.times = {COMPUTE: 0.0, MEMORY: 0.0, LAUNCH: 0.0}

    def add(self, one: Operation, cost: Cost, times: float = 1.0) -> None:
        self.flops += times * one.flops
        self.bytes += times * one.bytes
        self.operators += times
        self.call_s += times * cost.call_s
        for bound, seconds in ((COMPUTE, cost.compute_s), (MEMORY, cost.memory_s), (LAUNCH, cost.start_s)):
            self.times[bound] += times * seconds

    def group(self, name: str, by_turns: bool) -> OperatorGroup:
        times = self.times | {LAUNCH: self.times[LAUNCH] + (self.call_s if by_turns else 0.0)}
        bound = max(times, key=lambda which: times[which])
        return OperatorGroup(name, self.flops, self.bytes, self.operators, sum(times.values()), bound)


def _transfer_s(work: StepWork, settings: Settings, ceilings: Ceilings) -> float:
    """A batch that is not stored on the device is copied there before its step."""
    link = ceilings.host_to_device_pinned_bytes_per_s or ceilings.host_to_device_pageable_bytes_per_s
    if settings.tier == "resident" or link is None:
        return 0.0
    return work.batch_bytes / link.value
