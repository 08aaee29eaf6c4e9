"""Cuts a model, a chain of pieces, into stages, by the measured cost of each piece: the slowest stage should be fast."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import UsageError
from flatout.measure.clock import time_repeats
from flatout.models.gpt import GPT, own_past
from flatout.models.mlp import MLP

Side = Mapping[str, Any]  # keywords of the model's forward, which every stage gets


@dataclass(frozen=True)
class Chain(ABC):
    """A model as pieces that run one after the other, each with the names of its modules."""

    model: nn.Module
    pieces: tuple[tuple[str, ...], ...]
    layers: int  # each could be a stage

    @abstractmethod
    def run(self, part: Any, pieces: range, stream: Tensor, side: Side) -> Tensor:
        """Run these pieces of `part`. The first piece gets the inputs of the model's forward."""


class GPTChain(Chain):
    """The embedding, each block, and the norm with the head."""

    def run(self, part: GPT, pieces: range, stream: Tensor, side: Side) -> Tensor:
        documents = side.get("documents")
        visible = None if documents is None else own_past(documents)
        for piece in pieces:
            if piece == 0:
                stream = part.embed(stream, side.get("positions"))
            elif piece <= self.layers:
                stream = part.get_submodule(f"blocks.{piece - 1}")(stream, visible)
            else:
                stream = part.head(part.norm(stream))
        return stream


class LayerChain(Chain):
    """Modules that each take the output of the one before. An mlp starts with its features."""

    def run(self, part: nn.Module, pieces: range, stream: Tensor, side: Side) -> Tensor:
        if pieces.start == 0 and isinstance(part, MLP):
            stream = part.features(stream, side.get("categories"))
        for piece in pieces:
            for name in self.pieces[piece]:
                if name != "embeddings":
                    stream = part.get_submodule(name)(stream)
        return stream


def chain_of(model: nn.Module) -> Chain:
    if isinstance(model, GPT):
        blocks = tuple((f"blocks.{number}",) for number in range(len(model.blocks)))
        return GPTChain(model, (("tokens", "positions", "dropout"), *blocks, ("norm", "head")), len(blocks))
    if isinstance(model, MLP):
        begins = [number for number, layer in enumerate(model.body) if isinstance(layer, nn.Linear)]
        layers = [tuple(f"body.{number}" for number in range(*ends)) for ends in pairwise((*begins, len(model.body)))]
        first, *others = *layers, ("head",)
        return LayerChain(model, (("embeddings", *first), *others), 1 + len(others))
    if isinstance(model, nn.Sequential):
        return LayerChain(model, tuple((name,) for name, _ in model.named_children()), len(model))
    raise UsageError(
        f"pipeline needs a model that is a chain of layers (gpt, mlp, an nn.Sequential), got {type(model).__name__}: "
        "make it an nn.Sequential of its layers, or use shard instead of pipeline"
    )


def measure_costs(chain: Chain, given: Tensor, side: Side | None = None, *, repeats: int = 3) -> list[float]:
    """Seconds of each piece for one micro-batch, forward and backward. Needs the whole model, on the device of `given`."""
    seconds, stream = [], given
    for piece in range(len(chain.pieces)):
        entering = stream.detach()
        if entering.is_floating_point():
            entering.requires_grad_()

        def there_and_back(piece: int = piece, entering: Tensor = entering) -> None:
            made = chain.run(chain.model, range(piece, piece + 1), entering, side or {})
            if made.requires_grad:
                made.backward(torch.ones_like(made))

        seconds.append(min(time_repeats(there_and_back, repeats, 1, given.device)))
        with torch.no_grad():
            stream = chain.run(chain.model, range(piece, piece + 1), entering, side or {})
    for parameter in chain.model.parameters():
        parameter.grad = None
    return seconds


def balanced(costs: Sequence[float], stages: int) -> list[range]:
    """Contiguous parts, none empty, with the lowest maximum cost; among these the most even ones."""
    sums = [0.0, *accumulate(costs)]
    # by stages and `end`, for the first `end` pieces: maximum cost, sum of squares, start of the last stage
    best: list[dict[int, tuple[float, float, int]]] = [{0: (0.0, 0.0, 0)}]
    for stage in range(1, stages + 1):
        row = {}
        for end in range(stage, len(costs) - (stages - stage) + 1):
            row[end] = min(
                (max(worst, sums[end] - sums[begin]), squares + (sums[end] - sums[begin]) ** 2, begin)
                for begin, (worst, squares, _) in best[-1].items()
                if begin < end
            )
        best.append(row)
    cuts = [len(costs)]
    for row in reversed(best[1:]):
        cuts.append(row[cuts[-1]][2])
    return [range(begin, end) for begin, end in pairwise(reversed(cuts))]


def cut(model: nn.Module, stages: int, costs: Sequence[float] | None = None) -> tuple[Chain, list[range]]:
    """The pieces of each stage. Without `costs` all pieces count the same."""
    chain = chain_of(model)
    if stages > chain.layers:
        raise UsageError(
            f"{stages} stages and {chain.layers} layers: a stage needs at least one. "
            f"Set pipeline={chain.layers} or less, or build the model with {stages} layers"
        )
    costs = [1.0] * len(chain.pieces) if costs is None else costs
    if len(costs) != len(chain.pieces):
        raise UsageError(f"costs are for {len(costs)} pieces, the model has {len(chain.pieces)}: measure them again")
    return chain, balanced(costs, stages)


def only(module: nn.Module, names: Collection[str]) -> nn.Module:
    """The model with only these modules: same class, same names. Modules are shared, not copied."""
    part = copy.copy(module)
    kept = {name.partition(".")[0] for name in names}
    part._modules = {}
    for name, child in module._modules.items():
        if name in names or child is None:
            part._modules[name] = child
        elif name in kept:
            part._modules[name] = only(child, {one.partition(".")[2] for one in names if one.startswith(f"{name}.")})
    return part
