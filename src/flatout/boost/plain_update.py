"""The update that an unmodified torch optimizer makes from the gradients it is given."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

Named = list[tuple[str, Tensor]]


def gradient_of(optimizer: torch.optim.Optimizer, weight: Tensor) -> Tensor | None:
    """A fused optimizer under a GradScaler gets scaled gradients, and divides them itself."""
    if weight.grad is None:
        return None
    scale = getattr(optimizer, "grad_scale", None)
    found = weight.grad.detach()
    found = found.to_dense() if found.layout != torch.strided else found
    return found.float().clone() if scale is None else found.float() / scale.to(found.device)


def stands_still(optimizer: torch.optim.Optimizer) -> bool:
    """A warm-up schedule may start with a learning rate of 0, and a GradScaler may skip a step: that step shows nothing."""
    if (overflown := getattr(optimizer, "found_inf", None)) is not None and bool(overflown):
        return True
    rates = [group.get("lr") for group in optimizer.param_groups]
    return all(rate is not None and float(rate) == 0.0 for rate in rates)


def plain_update(optimizer: torch.optim.Optimizer, weights: Named) -> dict[str, Tensor]:
    """For the script's own optimizers there is no expected update, and theirs is compared with itself."""
    if not type(optimizer).__module__.startswith("torch.optim") or type(optimizer).__name__ == "LBFGS":
        return {}
    groups, clones = [], []
    scale = getattr(optimizer, "grad_scale", None)
    for group in optimizer.param_groups:
        mine = []
        for weight in group["params"]:
            clone = weight.detach().clone().requires_grad_()
            clone.grad = None if weight.grad is None else weight.grad.detach().clone()
            if clone.grad is not None and scale is not None:
                clone.grad.div_(scale.to(clone.grad.device))
            mine.append(clone)
        clones += mine
        plainly = {"fused": False, "foreach": False} if "fused" in group else {}
        groups.append({**group, **plainly, "params": mine})
    try:
        plain: torch.optim.Optimizer = type(optimizer)(groups)  # type: ignore[call-arg]
        for (_, weight), clone in zip(weights, clones, strict=True):
            if weight in optimizer.state:
                plain.state[clone] = deepcopy(optimizer.state[weight])
        plain.step()
    except (TypeError, RuntimeError, ValueError, AssertionError):
        return {}
    return {
        name: (clone.detach() - weight.detach()).float()
        for (name, weight), clone in zip(weights, clones, strict=True)
        if weight.grad is not None
    }
