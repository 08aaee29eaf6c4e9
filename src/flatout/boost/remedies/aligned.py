"""Pads matrix products whose width does not suit tensor cores, such as a vocabulary of 50,257. Tensor cores need aligned rows;
without them such a product takes several times as long."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.remedy import Offer, Remedy
from flatout.doctor.diagnosis import Diagnosis
from flatout.doctor.seen import is_odd
from flatout.machine.optimisations import ALIGNED_PRODUCTS

_ROUND = 64


class Aligned(Remedy):
    name = ALIGNED_PRODUCTS.name
    values = "a number of columns"
    of_gpu = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        usual = ALIGNED_PRODUCTS.usual_of_step.get(diagnosis.case.device.type)
        odd = any(call.odd_products for call in diagnosis.case.training_calls)
        return [Offer(self.name, _ROUND, "off", usual)] if odd and diagnosis.case.on_device else []

    def takes(self, value: Any) -> bool:
        return type(value) is int and value > 0

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.patches.wrap(F, "linear", lambda original: _rounded(original, int(value)))


def _rounded(original: Any, to: int) -> Any:
    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        narrow = weight.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cuda")
        if not narrow or not weight.is_cuda or weight.dim() != 2 or not is_odd(weight.shape[0]):
            product: Tensor = original(input, weight, bias)
            return product
        more = -weight.shape[0] % to
        wide: Tensor = original(input, F.pad(weight, (0, 0, 0, more)), None if bias is None else F.pad(bias, (0, more)))
        return wide[..., : weight.shape[0]]

    return linear
