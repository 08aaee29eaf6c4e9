"""What keeps a part of a model from learning: seen in its gradients and its outputs after a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_CUTS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh)  # 0, or a constant, over a part of their range
_SQUASHES = (nn.Sigmoid, nn.Tanh, nn.Softmax)
_NEARLY_ALL = 0.99
_AT_AN_END = 1e-3
_NAMED = 4


@dataclass(frozen=True)
class StuckPart:
    """`part`: names of parameters or layers."""

    part: str
    what: str
    remedy: str


class Outputs:
    """What layers return while a batch goes through the model: the share of values that can't change any more."""

    def __init__(self) -> None:
        self.dead: dict[str, float] = {}
        self.saturated: dict[str, float] = {}

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        hooks = [
            module.register_forward_hook(self._hook(name))
            for name, module in model.named_modules()
            if isinstance(module, (*_CUTS, *_SQUASHES))
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, given: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or not output.numel():
                return
            with torch.no_grad():
                if isinstance(module, _CUTS):
                    still = (output == 0) if not isinstance(module, nn.Hardtanh) else output.abs() >= module.max_val
                    self.dead[name] = float(still.float().mean())
                else:
                    low = -1.0 if isinstance(module, nn.Tanh) else 0.0
                    ends = ((output - low).abs() < _AT_AN_END) | ((output - 1).abs() < _AT_AN_END)
                    self.saturated[name] = float(ends.float().mean())

        return look


def stuck_parts(model: nn.Module, seen: Outputs, learned: bool) -> list[StuckPart]:
    """Call it after a backward pass. Saturated outputs are a finding only if the batch was not learned."""
    found: list[StuckPart] = []
    parameters = list(model.named_parameters())
    frozen = [name for name, one in parameters if not one.requires_grad]
    without = [name for name, one in parameters if one.requires_grad and one.grad is None]
    still = [name for name, one in parameters if one.grad is not None and not bool(one.grad.any())]
    broken = [name for name, one in parameters if one.grad is not None and not bool(torch.isfinite(one.grad).all())]
    if frozen:
        found.append(StuckPart(_named(frozen), "frozen: not trained", "remove them from freeze, if they should learn"))
    if without:
        remedy = "is it used in forward, without detach(), .data, no_grad(), .item() or argmax between it and the loss?"
        found.append(StuckPart(_named(without), "no gradient reaches it", remedy))
    if broken:
        found.append(
            StuckPart(_named(broken), "its gradient is not finite", "look for a log or a division by 0, or large inputs")
        )
    for name, share in seen.dead.items():
        if share >= _NEARLY_ALL:
            remedy = "lower the rate, check the scale of the inputs and the biases before it, or use GELU or LeakyReLU"
            found.append(StuckPart(name or "the model", f"dead: {share:.0%} of its outputs are constant", remedy))
    if still and not learned:
        found.append(StuckPart(_named(still), "its gradient is exactly zero", "look at the layers between it and the loss"))
    for name, share in seen.saturated.items() if not learned else ():
        if share >= _NEARLY_ALL:
            remedy = "its input is too large: normalize the inputs, or leave it out if the objective takes logits"
            found.append(StuckPart(name or "the model", f"saturated: {share:.0%} of its outputs are at an end", remedy))
    return found


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
