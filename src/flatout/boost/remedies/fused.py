"""The optimizer's fused kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.optimisations import FUSED_OPTIMIZER

_KINDS = ("Adam", "AdamW", "SGD", "Adagrad")
_DECIDED = ("fused", "foreach", "differentiable", "capturable")


class Fused(Remedy):
    name = FUSED_OPTIMIZER.name
    computes_the_same = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        ours = [one for one in diagnosis.case.seen.optimizers if one.can_fuse and not one.fused]
        return [Offer(self.name, "on", "off", predicted(diagnosis, FUSED_OPTIMIZER.finding))] if ours else []

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
    def __init__(optimizer: torch.optim.Optimizer, params: Any, *args: Any, **named: Any) -> None:
        groups = _listed(params)
        # the script's subclass may update in its own way, and a GradScaler leaves unscaling to a fused kernel
        is_own = not type(optimizer).__module__.startswith("torch.optim.")
        if is_own or any(named.get(name) for name in _DECIDED) or not all(map(_is_real, tree_leaves(groups))):
            original(optimizer, groups, *args, **named)
            return
        try:
            original(optimizer, groups, *args, **{**named, "foreach": None, "fused": True})
        except (RuntimeError, TypeError):  # the kernel does not support these weights
            original(optimizer, groups, *args, **named)
            return
        optimizer.register_load_state_dict_post_hook(_fused_again)

    return __init__


def _listed(params: Any) -> Any:
    """Turns iterators into lists, so that they can be read twice."""
    if isinstance(params, Tensor):
        return params  # torch raises the error for it
    return [{**one, "params": _listed(one["params"])} if isinstance(one, dict) and "params" in one else one for one in params]


def _is_real(leaf: Any) -> bool:
    return not isinstance(leaf, Tensor) or leaf.is_floating_point()


def _fused_again(optimizer: torch.optim.Optimizer) -> None:
    """A checkpoint of the unmodified script has set fused=False."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, None
