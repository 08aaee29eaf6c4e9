"""The optimizer updates the weights in many small operations where one fused kernel would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from flatout.base.units import show_count, show_seconds
from flatout.doctor.account import OPTIMIZER
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.seen import Optimizer
from flatout.machine.comparisons import fused_update
from flatout.machine.gains import GainComparison, Way
from flatout.machine.optimisations import FUSED_OPTIMIZER

_LEAST = 0.01  # of a step: a smaller gain is not reported


def look(case: Case) -> Iterator[Finding]:
    optimizer = case.optimizer
    if optimizer is None or optimizer.fused or not optimizer.can_fuse:
        return
    spent_ms = case.rows[OPTIMIZER]
    compared = _compared(case, optimizer) if case.share(spent_ms) >= _LEAST else None
    gain = case.gains.expected(FUSED_OPTIMIZER, case.device, compared)
    if gain is None:
        return
    yield Finding(
        FUSED_OPTIMIZER.finding,
        spent_ms * (1 - 1 / gain.factor),
        optimizer.made or optimizer.stepped,
        f"{optimizer.kind} updates the weights in many small operations; a fused kernel exists",
        f"{show_seconds(spent_ms / 1e3)} per step for {optimizer.tensors} tensors ({show_count(optimizer.elements)} weights); "
        f"a fused update, {gain.words}",
        f"{optimizer.kind}(..., fused=True)",
        short=FUSED_OPTIMIZER.words,
        estimate=not gain.measured,
    )


def _compared(case: Case, seen: Optimizer) -> GainComparison | None:
    options: dict[str, Any] = {"lr": 1e-3, **seen.options}

    def make(weights: list[nn.Parameter], fused: bool) -> Way:
        how = {"fused": True} if fused else {"foreach": True} if seen.foreach else {}
        made: torch.optim.Optimizer = getattr(torch.optim, seen.kind)(weights, **options, **how)
        return made.step

    kind = f"{seen.kind} {sorted(options.items())} {seen.dtype}{' foreach' if seen.foreach else ''}"
    return fused_update(case.device, kind, seen.sizes, getattr(torch, seen.dtype), make)
