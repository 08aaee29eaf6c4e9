"""Counts one step's work: floating-point operations, and the bytes that its operators read and write.

Each operator is recorded with the memory it touches. This allows sums by group, and shows which bytes a compiler would save:
those written and read again inside a chain of operators that it fuses.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count, shape_wrapper

from flatout.measure.groups import (
    ATTENTION,
    CONVOLUTIONS,
    ELEMENTWISE,
    LOSS,
    MOVEMENT,
    NORMALISATION,
    OTHER,
    PRODUCTS,
    group_of,
)

aten = torch.ops.aten

_NO_WORK = frozenset({"prim", "profiler"})
# these return memory, or the same memory in another shape, without reading or writing it
_UNTOUCHED = frozenset(
    {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten._unsafe_view}
)
# these read only the rows that an index selects, not the whole table
_GATHERS = frozenset({aten.embedding, aten.gather, aten.index, aten.index_select})
_IN_A_LOSS = frozenset({ELEMENTWISE, NORMALISATION, MOVEMENT, OTHER})
_NEVER_FUSED = frozenset({PRODUCTS, CONVOLUTIONS, ATTENTION})


def _attention_flops(query: Any, key: Any, value: Any, *given: Any, out_shape: Any = None, **named: Any) -> Any:
    return sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]


def _attention_backward_flops(
    gradient: Any, query: Any, key: Any, value: Any, *given: Any, out_shape: Any = None, **named: Any
) -> Any:
    return sdpa_backward_flop_count(gradient, query, key, value)  # type: ignore[no-untyped-call]


_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: shape_wrapper(_attention_flops),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: shape_wrapper(_attention_backward_flops),
}

Touched = tuple[tuple[int, int], ...]  # (id of a memory block, bytes touched in it)


@dataclass(frozen=True)
class TensorLayout:
    """Shape, strides and dtype of a tensor, without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def extent_bytes(self) -> int:
        """Bytes from the first element to the last."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass(frozen=True)
class Call:
    """An operator and the layouts of its arguments: enough to call it again on other values."""

    func: Any
    given: tuple[Any, ...]
    named: Mapping[str, Any]

    @classmethod
    def of(cls, func: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> Call:
        """Drops the user's random generators, so that calling again does not advance them."""
        told = tree_map_only(torch.Generator, lambda numbers: None, (given, dict(named)))
        return cls(func, *tree_map_only(torch.Tensor, _layout, told))

    @property
    def key(self) -> str:
        """Equal for calls that do the same work, also across processes."""
        return hashlib.sha256(repr((str(self.func), self.given, sorted(self.named.items()))).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Operation:
    """One launched operator. `dtype`: of its arithmetic. `parts`: the operators that were fused into this one."""

    name: str
    group: str
    dtype: torch.dtype
    flops: int
    reads: Touched
    writes: Touched
    backward: bool = False
    parts: tuple[Operation, ...] = ()
    key: str = ""  # `Call.key`
    call: Call | None = field(default=None, compare=False)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in (*self.reads, *self.writes))


@dataclass(frozen=True)
class OperatorCounts:
    """`bytes` is the traffic of operators run one by one. Compiling fuses some of it away."""

    flops: int
    bytes: int
    operators: int = 0  # launched one by one; views launch nothing
    operations: tuple[Operation, ...] = ()

    @classmethod
    def of(cls, operations: tuple[Operation, ...]) -> OperatorCounts:
        return cls(sum(one.flops for one in operations), sum(one.bytes for one in operations), len(operations), operations)


def count_step(fn: Callable[[], object]) -> OperatorCounts:
    """Call `fn` once, eagerly, and count. With fake or meta tensors nothing is computed or allocated."""
    with Counter() as counter:
        fn()
    return counter.counts()


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators called inside the `with` block, unless `paused`. The caller sets `in_loss` while the loss runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.in_loss = self.paused = False
        self._done: list[Operation] = []
        self._memory: dict[int, tuple[int, StorageWeakRef]] = {}  # a weak reference keeps the address from being reused

    def __enter__(self) -> Counter:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.paused and func.namespace not in _NO_WORK and not func.is_view and func.overloadpacket not in _UNTOUCHED:
            count = _FLOPS.get(func.overloadpacket)
            self._note(func, args, kwargs, result, int(count(*args, **kwargs, out_val=result)) if count else 0)
        return result

    def counts(self) -> OperatorCounts:
        return OperatorCounts.of(tuple(self._done))

    @property
    def done(self) -> int:
        """Number of operators counted so far."""
        return len(self._done)

    def number_of(self, tensor: torch.Tensor) -> int:
        """Id of the tensor's memory block, as used in `Operation.reads` and `writes`."""
        return self._number(tensor)

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, flops: int) -> None:
        written = _tensors((result, _changed_in_place(func, args, kwargs)))
        writes = self._touched(written)
        if func.overloadpacket in _GATHERS:
            rows = [(number, size) for (number, _), (_, size) in zip(self._touched(_tensors(args[0])), writes, strict=False)]
            reads = (*rows, *self._touched(_tensors((args[1:], kwargs))))
        else:
            reads = self._touched(_tensors((args, kwargs)))
        group = group_of(func, flops)
        if self.in_loss and group in _IN_A_LOSS:
            group = LOSS
        dtype = _computes_with((*_tensors(args), *written))
        backward = torch._C._current_graph_task_id() >= 0
        call = Call.of(func, args, kwargs)
        name = str(func.overloadpacket)
        self._done.append(Operation(name, group, dtype, flops, reads, writes, backward, key=call.key, call=call))

    def _touched(self, tensors: Iterable[torch.Tensor]) -> Touched:
        return tuple((self._number(tensor), _tensor_bytes(tensor)) for tensor in tensors)

    def _number(self, tensor: torch.Tensor) -> int:
        if tensor.layout is not torch.strided:
            return -id(tensor)
        memory = StorageWeakRef(tensor.untyped_storage())
        return self._memory.setdefault(memory.cdata, (len(self._memory), memory))[0]


def fuse(operations: Iterable[Operation]) -> list[Operation]:
    """Merge operators as a compiler would: neighbours without FLOPs become one, which reads each outside input once and writes
    each result that is used later once."""
    chains = [list(chain) for _, chain in groupby(operations, key=_chain_key())]
    last_read = {number: place for place, chain in enumerate(chains) for one in chain for number, _ in one.reads}
    return [_as_one(chain, last_read, place) if len(chain) > 1 else chain[0] for place, chain in enumerate(chains)]


def _chain_key() -> Callable[[Operation], tuple[int, bool]]:
    """Equal for neighbours that may be fused, different otherwise. Forward and backward are compiled separately."""
    place = 0

    def key(one: Operation) -> tuple[int, bool]:
        nonlocal place
        if one.group in _NEVER_FUSED:
            place += 2
            return place - 1, one.backward
        return place, one.backward

    return key


def _as_one(chain: list[Operation], last_read: Mapping[int, int], place: int) -> Operation:
    reads: dict[int, int] = {}
    writes: dict[int, int] = {}
    for one in chain:
        for number, size in one.reads:
            if number not in writes:
                reads[number] = max(size, reads.get(number, 0))
        writes |= dict(one.writes)
    read_inside = {number for one in chain for number, _ in one.reads}
    kept = {number: size for number, size in writes.items() if last_read.get(number, -1) > place or number not in read_inside}
    heaviest = max(chain, key=lambda one: one.bytes)
    return replace(heaviest, reads=tuple(reads.items()), writes=tuple(kept.items()), parts=tuple(chain), key="", call=None)


def _changed_in_place(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[object]:
    """Arguments that the operator writes to. Fused optimizers return nothing, so their writes show only here.

    They also declare writes to the gradients, which happen only when gradients are scaled.
    """
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
    return [
        given[argument.name]
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given.keys() - {"grads"}
    ]


def _layout(tensor: torch.Tensor) -> TensorLayout | None:
    return TensorLayout(tuple(tensor.shape), tensor.stride(), tensor.dtype) if tensor.layout is torch.strided else None


def _tensors(tree: object) -> list[torch.Tensor]:
    """All tensors in `tree`, each once: an in-place operator returns the tensor it changed."""
    return list({id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}.values())


def _computes_with(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)


def _tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes behind a tensor. An expanded dimension counts once."""
    if tensor.layout is not torch.strided:
        return int(tensor.numel()) * tensor.element_size()
    distinct = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or size == 0)
    return int(distinct) * tensor.element_size()
