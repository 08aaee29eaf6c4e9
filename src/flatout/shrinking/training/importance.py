"""How much each channel matters: what the loss would change without it, to first order, on training rows (Taylor)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flatout.data.source import Batch
from flatout.objectives.objective import Objective
from flatout.shrinking.training.cuts import MODEL, Width

_AT_ONCE = 64


def importance(model: nn.Module, objective: Objective, rows: Batch, widths: Sequence[Width]) -> dict[str, Tensor]:
    """For each layer a number for each channel. A batch adds the square of weight times gradient, summed over the channel."""
    found = {width.layer: torch.zeros(width.size, dtype=torch.float64) for width in widths if not width.why_not}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for start in range(0, len(rows["y"]), _AT_ONCE):
        loss_sum, weight = objective(model, {name: column[start : start + _AT_ONCE] for name, column in rows.items()})
        gradients = torch.autograd.grad(loss_sum / weight, list(parameters.values()), allow_unused=True)
        by = dict(zip(parameters, gradients, strict=True))
        for width in widths:
            if width.layer in found:
                found[width.layer] += _of_channels(width, parameters, by).square()
    return found


def _of_channels(width: Width, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None]) -> Tensor:
    total = torch.zeros(width.size, dtype=torch.float64)
    for one in width.makers:
        name = one.weight.removeprefix(MODEL)
        gradient = gradients.get(name)
        if gradient is not None:
            worth = (parameters[name].detach() * gradient).movedim(one.dim, 0)
            total += worth.double().cpu().reshape(one.repeat, width.size, -1).sum((0, 2))
    return total
