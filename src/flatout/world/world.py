"""The processes that train together, as one object: the rank of this process, and exchanges between them.

`World()` is a single process: rank 0 of 1, and every exchange returns its input. So callers need not ask whether there are
other processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Thing = TypeVar("Thing")

AXES = ("pipeline", "data", "shard", "context", "tensor")  # outermost first: ranks of a tensor group are neighbours
DATA_AXES = ("data", "shard")  # along these, each rank has different rows
WHOLE_AXES = ("data", "context")  # along these, each rank has all weights


class World:
    """`gather` and `from_first` take values that JSON can hold."""

    rank = 0
    size = 1
    local_rank = 0  # on this host
    local_size = 1
    data_rank = 0  # among ranks with different rows
    data_size = 1
    context_rank = 0  # among ranks with the same rows, each with a part of every sequence
    context_size = 1
    counts = True  # one of the ranks with the same rows and the same model output counts them in metrics
    mesh: Any = None  # a DeviceMesh after `lay_out`
    data_group: Any = None  # torch's group of ranks with different tokens; None: all ranks
    store: Any = None  # torch's store where the processes met

    @property
    def is_first(self) -> bool:
        """Rank 0, which writes files and prints for all."""
        return self.rank == 0

    @property
    def is_split(self) -> bool:
        """Whether each process has only part of the weights."""
        return self.mesh is not None and any(name not in WHOLE_AXES for name in self.mesh.mesh_dim_names)

    @property
    def is_split_within(self) -> bool:
        """Whether processes exchange activations within a forward pass, not only weights before it."""
        return self.mesh is not None and any(name in ("tensor", "pipeline", "context") for name in self.mesh.mesh_dim_names)

    @property
    def meets_in_forward(self) -> bool:
        """Whether the forward pass of one rank waits for others."""
        return self.is_split or self.is_split_within

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.size}"

    @property
    def token_rank(self) -> int:
        """Rank among those with different tokens: other rows, or another part of the same rows."""
        return self.data_rank * self.context_size + self.context_rank

    @property
    def token_size(self) -> int:
        return self.data_size * self.context_size

    def share(self, rows: int) -> tuple[int, int]:
        """The range of a batch's rows that belongs to this process. Shares are in order and as equal as possible."""
        return rows * self.data_rank // self.data_size, rows * (self.data_rank + 1) // self.data_size

    def largest_share(self, rows: int) -> int:
        return -(-rows // self.data_size)

    def stretches(self, length: int) -> list[tuple[int, int]]:
        """The positions of a sequence that belong to this process, in order.

        One range from the front and its mirror image from the back: a token attends to all tokens before it, so this gives
        every process the same amount of work. `length` must be a multiple of `length_step`.
        """
        if self.context_size == 1:
            return [(0, length)]
        one, last = length // self.length_step, self.length_step - 1
        return [(part * one, (part + 1) * one) for part in (self.context_rank, last - self.context_rank)]

    @property
    def length_step(self) -> int:
        """A sequence length must be a multiple of this."""
        return 1 if self.context_size == 1 else 2 * self.context_size

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over ranks with different tokens, in place."""
        self.begin_sum(tensor)()
        return tensor

    def begin_sum(self, tensor: Tensor) -> Callable[[], object]:
        """Start `sum_` in the background; call the returned function to wait for it."""
        return lambda: None

    def any(self, flag: bool) -> bool:
        return bool(self.highest(int(flag)))

    def highest(self, number: int) -> int:
        """The maximum over all ranks."""
        return number

    def gather(self, thing: Thing) -> list[Thing]:
        """The values of all ranks, in rank order."""
        return [thing]

    def gather_tensors(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The tensors of all ranks, in rank order, on the host. Names, types and shapes may differ."""
        return [dict(tensors)]

    def from_first(self, thing: Thing) -> Thing:
        return thing

    def barrier(self) -> None:
        pass

    def lay_out(self, axes: Mapping[str, int]) -> None:
        """Arrange the processes in a mesh with these axes, whose sizes multiply to the world size."""

    def close(self) -> None:
        pass


class ProcessWorld(World):
    """Uses torch's default process group, which uses Gloo for tensors on the host."""

    def __init__(self, device: torch.device, local_rank: int, local_size: int, store: Any, *, ours: bool) -> None:
        """`ours`: flatout created the process group and destroys it."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank, self.local_size = local_rank, local_size
        self.data_rank, self.data_size = self.rank, self.size
        self.store = store
        self._device, self._ours = device, ours

    def begin_sum(self, tensor: Tensor) -> Callable[[], object]:
        if self.token_size == 1:
            return lambda: None
        work = dist.all_reduce(tensor, group=self.data_group, async_op=True)
        assert work is not None
        wait: Callable[[], object] = work.wait
        return wait

    def highest(self, number: int) -> int:
        votes = torch.tensor([number], dtype=torch.int32)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        return int(votes.item())

    def gather(self, thing: Thing) -> list[Thing]:
        return [_from_bytes(piece) for piece in self._gather_bytes(_to_bytes(thing))]

    def gather_tensors(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        said = self.gather([[name, _written(one.dtype), list(one.shape)] for name, one in here.items()])
        pieces = [one.view(-1).view(torch.uint8) for one in here.values() if one.numel()]
        found = self._gather_bytes(torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8))
        return [_unpacked(described, piece) for described, piece in zip(said, found, strict=True)]

    def _gather_bytes(self, mine: Tensor) -> list[Tensor]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(mine)]))
        longest = max(int(size) for size in sizes)
        pieces = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        if longest:
            dist.all_gather(pieces, torch.nn.functional.pad(mine, (0, longest - len(mine))))
        return [piece[: int(size)] for piece, size in zip(pieces, sizes, strict=True)]

    def from_first(self, thing: Thing) -> Thing:
        mine = _to_bytes(thing if self.is_first else None)
        size = torch.tensor([len(mine)])
        dist.broadcast(size, src=0)
        piece = mine if self.is_first else torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(piece, src=0)
        found: Thing = _from_bytes(piece)
        return found

    def barrier(self) -> None:
        self.any(False)

    def lay_out(self, axes: Mapping[str, int]) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        names = tuple(name for name in AXES if axes.get(name, 1) > 1)
        if not names:
            return
        self.mesh = init_device_mesh(self._device.type, tuple(axes[name] for name in names), mesh_dim_names=names)
        place = dict(zip(names, self.mesh.get_coordinate(), strict=True))
        rows = [name for name in DATA_AXES if name in names]
        self.data_rank, self.data_size, self.counts = 0, 1, place.get("tensor", 0) == 0
        for name in rows:
            self.data_rank, self.data_size = self.data_rank * axes[name] + place[name], self.data_size * axes[name]
        self.context_rank, self.context_size = place.get("context", 0), axes.get("context", 1)
        tokens = [*rows, *(["context"] if self.context_size > 1 else [])]
        if self.token_size in (1, self.size):
            self.data_group = None
        elif len(tokens) == 1:
            self.data_group = self.mesh.get_group(tokens[0])
        else:
            self.data_group = self.mesh[tuple(tokens)]._flatten("tokens").get_group()

    def close(self) -> None:
        if self._ours and dist.is_initialized():
            dist.destroy_process_group()


def _written(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _unpacked(described: list[Any], piece: Tensor) -> dict[str, Tensor]:
    """Tensors by name, from their concatenated bytes."""
    found, begin = {}, 0
    for name, kind, shape in described:
        dtype: torch.dtype = getattr(torch, kind)
        end = begin + math.prod(shape) * dtype.itemsize
        found[name] = piece[begin:end].clone().view(dtype).view(shape)  # a copy, because a view needs aligned bytes
        begin = end
    return found


def _to_bytes(thing: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(thing).encode()), dtype=torch.uint8)


def _from_bytes(piece: Tensor) -> Any:
    return json.loads(bytes(piece.tolist()))
