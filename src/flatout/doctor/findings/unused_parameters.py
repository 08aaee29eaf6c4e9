"""Weights that never get a gradient: they are stored and saved but never learn."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_count
from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding


def look(case: Case) -> Iterator[Finding]:
    for optimizer in case.seen.optimizers:
        if optimizer.cut_off and optimizer.elements:
            share = optimizer.without_gradient_elements / optimizer.elements
            cut = case.seen.look.cut if case.seen.look is not None else []
            yield Finding(
                "cut_gradients",
                case.step_ms,
                cut[0] if cut else optimizer.made,
                "Weights that the model computes with never get a gradient, so they are never trained",
                f"{optimizer.cut_off} of {optimizer.tensors} weight tensors of the optimizer"
                + (
                    f"; {len(set(cut))} lines cut gradients off with detach()"
                    if cut
                    else "; something cuts their gradients off"
                ),
                "remove detach(), .data, .item() or no_grad() between these weights and the loss; if they are meant to stay as "
                "they are, requires_grad_(False) says so",
                gain=1.0,
                about=WRONG,
            )
            return
        if optimizer.without_gradient and optimizer.elements:
            share = optimizer.without_gradient_elements / optimizer.elements
            yield Finding(
                "unused_parameters",
                share * case.step_ms * 0.1,
                optimizer.made,
                f"{optimizer.without_gradient} of {optimizer.tensors} weight tensors never got a gradient",
                f"{show_count(optimizer.without_gradient_elements)} weights ({share:.0%}) are unused in training; "
                "if the model still computes with them, that time is lost too",
                "remove them from the model or freeze them (requires_grad_(False)); with DistributedDataParallel they "
                "also require find_unused_parameters, which costs time",
                always=True,
            )
            return
