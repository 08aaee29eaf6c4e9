"""The forward of a layer that is split over processes.

Between split layers, the residual stream is whole on every process or split along the sequence. Inside a split layer tensors
are plain: DTensor holds the weights and moves data at the edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

QKV = 3  # parts of a fused projection


@dataclass(frozen=True)
class ResidualStream:
    mesh: DeviceMesh
    layout: Placement
    is_local: bool  # plain tensors; else DTensors

    def take(self, given: Any, layout: Placement) -> DTensor:
        """A plain tensor counts as whole."""
        known = given if isinstance(given, DTensor) else DTensor.from_local(given, self.mesh, [Replicate()], run_check=False)
        return known.redistribute(placements=[layout])

    def take_whole(self, given: Any) -> Tensor:
        """A plain tensor; each process will have a part of its gradient."""
        return self.take(given, Replicate()).to_local(grad_placements=[Partial()])

    def give(self, made: DTensor) -> Tensor:
        moved = made.redistribute(placements=[self.layout])
        return moved.to_local() if self.is_local else moved

    def enter(self, given: Tensor) -> Tensor:
        """Converts what another pipeline stage sent."""
        return given if self.is_local else self.take(given, self.layout)

    def leave(self, made: Tensor) -> Tensor:
        """A plain, whole tensor for another pipeline stage."""
        return _gathered(made).contiguous() if isinstance(made, DTensor) else made

    def __deepcopy__(self, memo: object) -> ResidualStream:
        return self  # a copied model uses the same processes


def run_by_column(module: Any, stream: ResidualStream) -> None:
    module.forward = partial(_own_outputs, module, stream)


def run_gathered(module: Any, stream: ResidualStream) -> None:
    module.forward = partial(_all_outputs, module, stream)


def run_logits(module: Any, stream: ResidualStream) -> None:
    module.forward = partial(_logits, module, stream)


def run_by_row(module: Any, stream: ResidualStream) -> None:
    module.forward = partial(_own_tokens if isinstance(module, nn.Embedding) else _own_inputs, module, stream)


def run_by_heads(module: Any, stream: ResidualStream) -> None:
    module.forward = partial(_own_heads, module, stream)


def run_on_sequence(module: nn.Module, stream: ResidualStream) -> None:
    module.register_forward_pre_hook(lambda _, given: (stream.take(given[0], stream.layout), *given[1:]))
    module.register_forward_hook(lambda _, given, made: stream.give(made))


def run_whole(module: nn.Module, stream: ResidualStream) -> None:
    module.register_forward_pre_hook(lambda _, given: (stream.take(given[0], Replicate()), *given[1:]))
    if stream.is_local:
        module.register_forward_hook(lambda _, given, made: made.to_local())


RUNS: dict[str, Callable[[nn.Module, ResidualStream], None]] = {
    "column": run_by_column,
    "gathered": run_gathered,
    "logits": run_logits,
    "row": run_by_row,
    "qkv": run_by_heads,
    "sequence": run_on_sequence,
    "whole": run_whole,
}


def _own_outputs(module: Any, stream: ResidualStream, x: Tensor) -> Tensor:
    if isinstance(module, nn.Embedding):
        return F.embedding(stream.take(x, Replicate()).to_local(), _own(module.weight))
    return F.linear(stream.take_whole(x), _own(module.weight), _own(module.bias))


def _all_outputs(module: Any, stream: ResidualStream, x: Tensor) -> Tensor:
    return _gathered(_as_part(module, stream, _own_outputs(module, stream, x)))


def _logits(module: Any, stream: ResidualStream, x: Tensor) -> Tensor:
    """In training, logits stay split, because only the loss uses them."""
    logits = _as_part(module, stream, _own_outputs(module, stream, x))
    return logits if module.training else _gathered(logits)


def _own_inputs(module: Any, stream: ResidualStream, x: Tensor) -> Tensor:
    """Each process has some of the inputs, so it computes a part of every sum."""
    if isinstance(x, DTensor) or x.shape[-1] == module.in_features:
        x = stream.take(x, Shard(x.dim() - 1)).to_local()
    total = DTensor.from_local(F.linear(x, _own(module.weight)), stream.mesh, [Partial()], run_check=False)
    if module.bias is None:
        return stream.give(total)
    biased: Any = total.redistribute(placements=[stream.layout]) + module.bias
    return stream.give(biased)


def _own_tokens(module: Any, stream: ResidualStream, x: Tensor) -> Tensor:
    """An embedding of which each process has some rows: zeros for tokens of other processes."""
    weight = _own(module.weight)
    first = stream.mesh.get_local_rank() * -(-module.num_embeddings // stream.mesh.size())
    place = stream.take(x, Replicate()).to_local() - first
    elsewhere = (place < 0) | (place >= len(weight))
    found = F.embedding(place.masked_fill(elsewhere, 0), weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)
    return stream.give(DTensor.from_local(found, stream.mesh, [Partial()], run_check=False))


def _own_heads(module: Any, stream: ResidualStream, x: Tensor) -> Tensor:
    """Queries, keys and values of this process's heads, in the order of the whole layer.

    In the whole weight all queries come first, so an even split of its rows does not give whole heads. Rows are exchanged in
    every forward, and their gradients in the backward: few bytes if a batch has more tokens than the layer has columns. A
    weight stored by heads would differ from that of one process in a checkpoint, and could not be sharded further.
    """
    weight, bias = (None if own is None else _rows_of_heads(_own(own), stream.mesh) for own in (module.weight, module.bias))
    assert weight is not None
    return F.linear(stream.take_whole(x), weight, bias)


def _rows_of_heads(rows: Tensor, mesh: DeviceMesh) -> Tensor:
    """The whole tensor has 3 x `size` pieces. A process has 3 in a row, and needs its own piece of each third."""
    size, rank, piece = mesh.size(), mesh.get_local_rank(), rows.shape[0] // QKV
    takers = [[(QKV * owner + place) % size for place in range(QKV)] for owner in range(size)]
    order = sorted(range(QKV), key=lambda place: takers[rank][place])
    sent = [piece * takers[rank].count(taker) for taker in range(size)]
    received = [piece * takers[owner].count(rank) for owner in range(size)]
    moved: Tensor = all_to_all_single_autograd(rows.unflatten(0, (QKV, piece))[order].flatten(0, 1), received, sent, mesh)
    return moved


def _own(weight: Any) -> Any:
    return None if weight is None else weight.to_local()


def _as_part(module: Any, stream: ResidualStream, local: Tensor) -> DTensor:
    """The number of outputs need not be divisible: the last process may have fewer."""
    outputs = module.embedding_dim if isinstance(module, nn.Embedding) else module.out_features
    shape = torch.Size((*local.shape[:-1], outputs))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, stream.mesh, [Shard(local.dim() - 1)], run_check=False, shape=shape, stride=stride)


def _gathered(part: DTensor) -> Tensor:
    return part.redistribute(placements=[Replicate()]).to_local()
