"""bf16 autocast inside the model; its outputs are converted back to float32, as the script expects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from flatout.boost.hooks import Hooks, learns
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.autocasting import autocast
from flatout.machine.optimisations import AUTOCAST


class Autocast(Remedy):
    name = AUTOCAST.name
    values = '"bf16"'
    shortens_computing = True
    precision = "bf16"

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        calls = diagnosis.case.training_calls
        plain = any(not call.autocast and call.parameter_dtype == "float32" for call in calls)
        gain = predicted(diagnosis, AUTOCAST.finding)
        if not plain or (gain is None and not diagnosis.case.on_device):
            return []
        return [Offer(self.name, "bf16", "off", gain)]

    def takes(self, value: Any) -> bool:
        return bool(value == "bf16")

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.around.append(lambda module: autocast(_device_of(module), torch.bfloat16, enabled=learns(module)))
        hooks.outputs.append(lambda module, result: tree_map_only(Tensor, _widened, result) if learns(module) else result)


def _device_of(module: nn.Module) -> str:
    first = next(module.parameters(), None)
    return "cpu" if first is None else first.device.type


def _widened(tensor: Tensor) -> Tensor:
    """float16, too: cuDNN's recurrent layers return it under any autocast."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
