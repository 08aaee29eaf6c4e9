"""The format of what flows between the blocks of a model of tokens: float32, or that of mixed precision.

Autocast leaves what an embedding gives in float32, and all that is added to it on its way through the blocks. In the format of
the products there is half as much to move, with fewer digits. A module that keeps such a stream in its own way has an attribute
`narrow_residual`, which the setting residual turns; in any other model the outputs of its embeddings are turned.
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
    """As it is, where autocast is off or has nothing to say about its format."""
    kind = stream.device.type
    narrow = stream.dtype == torch.float32 and torch.is_autocast_enabled(kind)
    return stream.to(torch.get_autocast_dtype(kind)) if narrow else stream


def _narrowed(embedding: nn.Module, given: Any, output: Any) -> Any:
    return in_autocast(output) if getattr(embedding, _OFFER) and isinstance(output, Tensor) else None
