"""The optimizer's fused kernel."""

from __future__ import annotations

from typing import Any

import torch

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis

_KINDS = ("Adam", "AdamW", "SGD", "Adagrad")
_DECIDED = ("fused", "foreach", "differentiable", "capturable")


class Fused(Remedy):
    name = "fused_optimizer"

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        ours = [one for one in diagnosis.case.seen.optimizers if one.can_fuse and not one.fused]
        return [Offer(self.name, "on", "off", predicted(diagnosis, "unfused_optimizer"))] if ours else []

    def apply(self, value: Any, hooks: Hooks) -> None:
        for kind in _KINDS:
            hooks.patches.wrap(getattr(torch.optim, kind), "__init__", _fusing)

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        edits = []
        for one in diagnosis.case.seen.optimizers:
            at = placed(one.made)
            if one.can_fuse and not one.fused and at is not None:
                edits.append(Edit(*at, function=one.kind, arguments=(("fused", "True"),)))
        return edits


def _fusing(original: Any) -> Any:
    def __init__(optimizer: torch.optim.Optimizer, *args: Any, **named: Any) -> None:
        if any(named.get(name) for name in _DECIDED):
            original(optimizer, *args, **named)
            return
        try:
            original(optimizer, *args, **{**named, "foreach": None, "fused": True})
        except (RuntimeError, TypeError):  # weights that the kernel does not take
            original(optimizer, *args, **named)

    return __init__
