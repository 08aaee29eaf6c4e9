"""A network of linear layers, for tables and small images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flatout.base.specs import pick

ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


class MLP(nn.Module):
    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        hidden: Sequence[int],
        activation: str,
        dropout: float,
        norm: bool,
        cardinalities: Sequence[int],
    ) -> None:
        super().__init__()
        make_activation = pick(ACTIVATIONS, activation, "activation")
        layers: list[nn.Module] = []
        self.embeddings = nn.ModuleList(nn.Embedding(count, embedding_width(count)) for count in cardinalities)
        for embedding in self.embeddings:
            nn.init.normal_(embedding.weight, std=0.1)  # type: ignore[arg-type]
        width = math.prod(input_shape) + sum(map(embedding_width, cardinalities))
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

    def forward(self, x: Tensor, categories: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.body(self.features(x, categories)))
        return logits

    def features(self, x: Tensor, categories: Tensor | None = None) -> Tensor:
        """The input of the first layer."""
        x = x.flatten(1)
        if not x.is_floating_point():
            x = x.to(next(self.parameters()).dtype)
        if categories is not None:
            x = torch.cat([x, *(embed(categories[:, i]) for i, embed in enumerate(self.embeddings))], dim=1)
        return x


def mlp(
    input_shape: Sequence[int],
    outputs: int,
    hidden: Sequence[int] | int = (64, 64),
    activation: str = "relu",
    dropout: float = 0.0,
    norm: bool = False,
    cardinalities: Sequence[int] = (),
) -> nn.Module:
    """Takes rows of any shape, flattened; integers become floats. `norm` is a LayerNorm, so rows of a batch do not interact.

    `cardinalities` comes from tables with categories that have too many values for one-hot columns: each gets an embedding.
    """
    layers = (hidden,) if isinstance(hidden, int) else hidden
    return MLP(input_shape, outputs, layers, activation, dropout, norm, cardinalities)


def embedding_width(values: int) -> int:
    """Grows with the fourth root of the number of values, between 4 and 64."""
    return int(min(64, max(4, round(6 * float(values) ** 0.25))))
