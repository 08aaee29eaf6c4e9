"""The dtype of the residual stream between the blocks of a token model: float32, or that of mixed precision.

Autocast keeps the output of an embedding, and everything added to it, in float32. In the lower precision there is half as much
data to move, with fewer digits. A module that handles its own residual stream has an attribute `narrow_residual`, which the
setting residual changes; in other models the outputs of embeddings are converted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_OFFER = "narrow_residual"


def can_narrow(model: nn.Module) -> bool:
    return any(hasattr(module, _OFFER) or isinstance(module, nn.Embedding) for module in model.modules())


def narrow_residual(model: nn.Module, on: bool) -> None:
    offers: list[Any] = [module for module in model.modules() if hasattr(module, _OFFER)]
    if not offers and on:
        offers = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        for embedding in offers:
            embedding.register_forward_hook(_narrowed)
    for module in offers:
        setattr(module, _OFFER, on)


def in_autocast(stream: Tensor) -> Tensor:
    """Unchanged if autocast is off or does not apply to its dtype."""
    kind = stream.device.type
    narrow = stream.dtype == torch.float32 and torch.is_autocast_enabled(kind)
    return stream.to(torch.get_autocast_dtype(kind)) if narrow else stream


def _narrowed(embedding: nn.Module, given: Any, output: Any) -> Any:
    return in_autocast(output) if getattr(embedding, _OFFER) and isinstance(output, Tensor) else None
