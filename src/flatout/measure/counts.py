"""What one step computes and moves: floating-point operations, and bytes that its operators read and write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten

# they hand out memory without touching it
_ALLOCATIONS = frozenset({aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided})
# they read the rows that an index names, not the whole table
_GATHERS = frozenset({aten.embedding, aten.gather, aten.index, aten.index_select})


@dataclass(frozen=True)
class Counts:
    """`bytes` is the traffic of operators run one by one: compiling fuses some of it away."""

    flops: int
    bytes: int
    operators: int = 0  # launched one by one; views launch nothing


def count_step(fn: Callable[[], object]) -> Counts:
    """Call `fn` once, eagerly, and count. With fake or meta tensors nothing is computed and nothing allocated."""
    flops = FlopCounterMode(display=False)
    moved = _ByteCounter()
    with flops, moved:
        fn()
    return Counts(int(flops.get_total_flops()), moved.total_bytes, moved.operators)


class _ByteCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total_bytes = 0
        self.operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view and func.namespace != "prim" and func.overloadpacket not in _ALLOCATIONS:
            self.operators += 1
            written_bytes = _touched_bytes((result, _changed_in_place(func, args, kwargs)))
            if func.overloadpacket in _GATHERS:
                self.total_bytes += 2 * written_bytes + _touched_bytes((args[1:], kwargs))
            else:
                self.total_bytes += written_bytes + _touched_bytes((args, kwargs))
        return result


def _changed_in_place(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[object]:
    """Arguments that the operator writes to; fused optimizers return nothing and would seem to write nothing."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
    return [
        given[argument.name]
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]


def _touched_bytes(tree: object) -> int:
    """Bytes of all tensors in `tree`, each counted once: an in-place operator returns the tensor that it changed."""
    distinct = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}
    return sum(_tensor_bytes(tensor) for tensor in distinct.values())


def _tensor_bytes(tensor: torch.Tensor) -> int:
    """Memory behind a tensor: an expanded dimension repeats the same bytes and counts once."""
    if tensor.layout is not torch.strided:
        return int(tensor.numel()) * tensor.element_size()
    distinct = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or size == 0)
    return int(distinct) * tensor.element_size()
