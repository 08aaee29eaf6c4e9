"""How many channels each layer keeps, so that a share of the work or of the weights is left. All layers lose the same share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flatout.shrinking.training.cuts import Width
from flatout.shrinking.training.surgery import cut

_ROUND = 4  # channels: kernels are written for groups of them
_TRIES = 12


def flops_of(call: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return int(counter.get_total_flops())


def weights_of(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def narrowed(
    model: nn.Module, widths: Sequence[Width], worth: Mapping[str, Tensor], size: Callable[[nn.Module], int], share: float
) -> nn.Module:
    """The widest cut with at most `share` of the `size`. Each layer keeps its channels of the most worth, in their order."""
    most, low, high = share * size(model), 0.0, 1.0
    made = cut(model, widths, _kept(worth, low))
    for _ in range(_TRIES):
        middle = (low + high) / 2
        narrower = cut(model, widths, _kept(worth, middle))
        if size(narrower) <= most:
            low, made = middle, narrower
        else:
            high = middle
    return made


def scale_dropout(model: nn.Module, left: float) -> None:
    """Fewer weights overfit less: dropout falls with the root of the share that is left (Han et al. 2015, section 3.2)."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p *= left**0.5


def _kept(worth: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    return {layer: values.topk(_count(len(values), share)).indices.sort().values for layer, values in worth.items()}


def _count(size: int, share: float) -> int:
    wanted = share * size
    rounded = round(wanted / _ROUND) * _ROUND if size >= 4 * _ROUND else round(wanted)
    return max(1, min(size, int(rounded)))
