"""Images and convolution weights in the channels-last layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.boost.remedies.written import before_the_loop
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.optimisations import CHANNELS_LAST


class ChannelsLast(Remedy):
    name = CHANNELS_LAST.name
    written_in_part = True
    shortens_computing = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        calls = [one for one in diagnosis.case.training_calls if one.has_convolutions and one.channels_last is False]
        return [Offer(self.name, "on", "off", predicted(diagnosis, CHANNELS_LAST.finding))] if calls else []

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.prepare.append(_turned)
        hooks.inputs.append(_turned_inputs)

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        return before_the_loop(diagnosis, "{model}.to(memory_format=torch.channels_last)")


def _has_convolutions(module: nn.Module) -> bool:
    return any(isinstance(part, nn.Conv2d | nn.ConvTranspose2d) for part in module.modules())


def _turned(module: nn.Module) -> bool:
    if _has_convolutions(module):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return True


def _turned_inputs(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(_picture(value) for value in args), {name: _picture(value) for name, value in named.items()}


def _picture(value: Any) -> Any:
    is_picture = isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point()
    return value.contiguous(memory_format=torch.channels_last) if is_picture else value
