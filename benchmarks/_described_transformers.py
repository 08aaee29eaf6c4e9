"""Transformers that are only described: a block of each kind is built on the meta device and counted, and repeated in numbers.

The shapes of Llama 3.1 are those that Meta published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.base.errors import UsageError, did_you_mean
from flatout.plan.layouts.count import count_model
from flatout.plan.layouts.shape import Shape


@dataclass(frozen=True)
class Transformer:
    """A decoder with rotary positions, grouped keys and values, RMS norms and a gated MLP."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int

    @property
    def splits(self) -> Mapping[str, int]:
        return {"attention heads": self.heads, "key and value heads": self.kv_heads, "hidden units": self.hidden}


DESCRIBED = {
    one.name: one
    for one in (
        Transformer("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256),
        Transformer("llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256),
        Transformer("llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256),
    )
}


def described(name: str) -> Transformer:
    found = DESCRIBED.get(name.strip().lower())
    if found is None:
        raise UsageError(f"no model {name!r} is described: {did_you_mean(name.strip().lower(), DESCRIBED)}")
    return found


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return scaled.type_as(x) * self.weight


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles).flatten(-2).type_as(x)


class _Attention(nn.Module):
    def __init__(self, one: Transformer) -> None:
        super().__init__()
        self.each, self.groups = one.width // one.heads, one.heads // one.kv_heads
        self.query = nn.Linear(one.width, one.width, bias=False)
        self.key = nn.Linear(one.width, one.kv_heads * self.each, bias=False)
        self.value = nn.Linear(one.width, one.kv_heads * self.each, bias=False)
        self.project = nn.Linear(one.width, one.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part(x).unflatten(-1, (-1, self.each)) for part in (self.query, self.key, self.value))
        angles = torch.empty(x.shape[1], 1, self.each // 2, dtype=torch.complex64)
        key, value = (part.repeat_interleave(self.groups, 2) for part in (_turned(key, angles), value))
        query, key, value = (part.transpose(1, 2) for part in (_turned(query, angles), key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return projected


class _Block(nn.Module):
    def __init__(self, one: Transformer) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = _Norm(one.width), _Norm(one.width)
        self.attention = _Attention(one)
        self.gate = nn.Linear(one.width, one.hidden, bias=False)
        self.expand = nn.Linear(one.width, one.hidden, bias=False)
        self.project = nn.Linear(one.hidden, one.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        normed = self.norm_mlp(x)
        out: Tensor = x + self.project(F.silu(self.gate(normed)) * self.expand(normed))
        return out


class _Model(nn.Module):
    def __init__(self, one: Transformer, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(one.vocabulary, one.width)
        self.blocks = nn.ModuleList(_Block(one) for _ in range(layers))
        self.norm = _Norm(one.width)
        self.head = nn.Linear(one.width, one.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _loss(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, float]:
    return F.cross_entropy(model(batch["x"]).flatten(0, 1).float(), batch["y"].flatten()), 1.0


def build(one: Transformer, layers: int) -> nn.Module:
    """Without numbers: on the meta device."""
    with torch.device("meta"):
        return _Model(one, layers)


@cache
def shape_of_transformer(one: Transformer, length: int) -> Shape:
    """For samples of `length` tokens. The second of two blocks stands for all: the first has no neighbour to save for."""
    row = ((length,), torch.int64)
    counted = count_model(
        build(one, 2), _loss, {"x": row, "y": row}, name=one.name, unit="tokens", per_sample=length, splits=one.splits
    )
    return Shape(one.name, counted.first, (counted.blocks[1],) * one.layers, counted.last, "tokens", length, splits=one.splits)
