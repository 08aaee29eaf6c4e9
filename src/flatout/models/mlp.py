"""A plain network of linear layers, for tables and small images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from flatout.base.specs import pick

ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


class MLP(nn.Module):
    def __init__(
        self, input_shape: Sequence[int], outputs: int, hidden: Sequence[int], activation: str, dropout: float, norm: bool
    ) -> None:
        super().__init__()
        make_activation = pick(ACTIVATIONS, activation, "activation")
        layers: list[nn.Module] = []
        width = math.prod(input_shape)
        for wider in hidden:
            layers.append(nn.Linear(width, wider))
            if norm:
                layers.append(nn.LayerNorm(wider))
            layers.append(make_activation())
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = wider
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if not x.is_floating_point():
            x = x.to(self.head.weight.dtype)
        logits: Tensor = self.head(self.body(x))
        return logits


def mlp(
    input_shape: Sequence[int],
    outputs: int,
    hidden: Sequence[int] | int = (64, 64),
    activation: str = "relu",
    dropout: float = 0.0,
    norm: bool = False,
) -> nn.Module:
    """Rows of any shape, flattened; integers become floats. `norm` is a LayerNorm, so the rows of a batch do not interact."""
    return MLP(input_shape, outputs, (hidden,) if isinstance(hidden, int) else hidden, activation, dropout, norm)
