"""The last layer of a token model. It can compute logits for a multiple of 64 columns, which is faster on GPUs.

Only the computation is padded: weights, checkpoints and exports have the real vocabulary. Any module can support this with an
attribute `pad_vocabulary_to`, which the setting vocabulary_padding changes; the logits of padding must never win.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Low enough that softmax gives exactly 0, and still a valid float16.
PADDING_LOGIT = -1e4


class OutputHead(nn.Linear):
    """Hidden states to logits. The logits of padding change neither loss nor gradient."""

    def __init__(self, width: int, vocabulary: int, bias: bool = False) -> None:
        super().__init__(width, vocabulary, bias=bias)
        self.pad_vocabulary_to = 0  # no padding

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.projection()
        return F.linear(x, weight, bias)

    def projection(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the logits. The padding is masked through the bias, which needs no extra pass."""
        rows = self.weight.shape[0]
        padding = -rows % self.pad_vocabulary_to if self.pad_vocabulary_to else 0
        if not padding:
            return self.weight, self.bias
        weight = self._in_autocast(self.weight)  # first, so that the copy made by autocast is the one that is padded
        bias = weight.new_zeros(rows) if self.bias is None else self._in_autocast(self.bias)
        return F.pad(weight, (0, 0, 0, padding)), F.pad(bias, (0, padding), value=PADDING_LOGIT)

    def _in_autocast(self, weight: Tensor) -> Tensor:
        kind = weight.device.type
        if weight.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
            return weight
        return weight.to(torch.get_autocast_dtype(kind))


def can_pad(model: nn.Module) -> bool:
    return bool(_padding_heads(model))


def pad_vocabulary(model: nn.Module, multiple: int) -> None:
    """In every head that supports it. 0: no padding."""
    for head in _padding_heads(model):
        head.pad_vocabulary_to = multiple


def _padding_heads(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "pad_vocabulary_to")]
