"""Counts a model's shape: one forward and backward on tensors without data, operator by operator, block by block.

Weights and inputs have the compute dtype, as in sharding with mixed precision. The kernels are those of a CPU: attention
without a fast CPU kernel, such as with dropout, is counted with all its scores.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from flatout.measure.counts import Counter, Operation, fuse
from flatout.measure.groups import ATTENTION, CONVOLUTIONS, PRODUCTS
from flatout.models.dataless import fake_copy
from flatout.models.repeats import Repeats
from flatout.plan.layouts.shape import BlockShape, PassWork, SavedActivations, Shape

_ROWS = 2  # counted at once: batch norm needs more than one row
_HEAVY = (PRODUCTS, CONVOLUTIONS)
Loss = Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, Any]]


@dataclass
class _Watch:
    """The counter's place in the model: 0 before the blocks, 1 to n in them, n + 1 after."""

    counter: Counter
    blocks: int
    place: int = 0
    marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    saved: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # storage: place, operators before, bytes
    storages: list[StorageWeakRef] = field(default_factory=list)  # keep addresses from being reused
    weights: set[int] = field(default_factory=set)
    output_bytes: dict[int, int] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)  # the place where a module was first called

    def done(self) -> int:
        return self.counter.done

    def go(self, place: int) -> None:
        self.place = place
        self.marks.append((self.done(), place))

    def save(self, tensor: Tensor) -> Tensor:
        storage = StorageWeakRef(tensor.untyped_storage())
        if storage.cdata not in self.weights and storage.cdata not in self.saved:
            self.saved[storage.cdata] = (self.place, self.done(), tensor.untyped_storage().nbytes())
            self.storages.append(storage)
        return tensor

    def leave(self, place: int, output: Any) -> None:
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        self.output_bytes[place] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: self.go(place))
        self.go(place + 1 if place == self.blocks else place)


def count_model(
    model: nn.Module,
    loss: Loss,
    columns: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    *,
    name: str = "model",
    dtype: torch.dtype = torch.bfloat16,
    unit: str = "samples",
    per_sample: float = 1.0,
    splits: Mapping[str, int] | None = None,
) -> Shape:
    """`columns`: shape and dtype of one row of each. Raises the model's own error if it can't run without data."""
    copied, fake = fake_copy(model)
    names = {id(module): name for name, module in copied.train().named_modules()}
    repeats = Repeats(copied)
    blocks = repeats.blocks
    with fake:
        state = {name: _empty(t, dtype) for name, t in (*copied.named_parameters(), *copied.named_buffers())}
        shapes = {name: ((_ROWS, *shape), dtype if kind.is_floating_point else kind) for name, (shape, kind) in columns.items()}
        batch = {name: torch.empty(shape, dtype=kind) for name, (shape, kind) in shapes.items()}
        with Counter() as counter:
            watch = _Watch(counter, len(blocks))
            watch.weights = {StorageWeakRef(t.untyped_storage()).cdata for t in state.values()}
            _listen(copied, blocks, watch)
            with repeats.counted_by(counter):
                with saved_tensors_hooks(watch.save, lambda tensor: tensor):
                    loss_sum, weight = loss(_Called(copied, state), batch)
                    total = loss_sum / weight
                total.backward()
    owners = _owners(copied, blocks, watch, names)
    read = {number for one in counter.counts().operations for number, _ in one.reads} | repeats.read_by_copies
    known: dict[BlockShape, BlockShape] = {}  # equal blocks become one object, so that they are calculated once
    made: list[BlockShape] = []
    for place, stands in enumerate([0, *(place + 1 for place in repeats.stands_for), len(blocks) + 1]):
        block = _block(watch, place, owners, read) if stands == place else made[stands]
        made.append(known.setdefault(block, block))
    tied = sum(p.numel() for p, place in _second_uses(copied, watch, names) if place == len(blocks) + 1)
    return Shape(name, made[0], tuple(made[1:-1]), made[-1], unit, per_sample, tied, splits)


def _empty(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    kind = dtype if tensor.is_floating_point() else tensor.dtype
    return torch.empty(tensor.shape, dtype=kind).requires_grad_(tensor.requires_grad)


class _Called(nn.Module):
    def __init__(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        super().__init__()
        self._call: Any = lambda *given, **named: functional_call(model, state, given, named)

    def forward(self, *given: Any, **named: Any) -> Any:
        return self._call(*given, **named)


def _listen(model: nn.Module, blocks: list[nn.Module], watch: _Watch) -> None:
    for number, block in enumerate(blocks, 1):
        block.register_forward_pre_hook(lambda module, given, number=number: _enter(watch, number, given))
        block.register_forward_hook(lambda module, given, output, number=number: watch.leave(number, output))
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(lambda module, given, name=name: _used(watch, name))


def _used(watch: _Watch, name: str) -> None:
    watch.users.setdefault(name, watch.place)


def _enter(watch: _Watch, number: int, given: Any) -> None:
    watch.go(number)
    if number == 1:
        for leaf in tree_leaves(given):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                watch.output_bytes[0] = leaf.numel() * leaf.element_size()
                leaf.register_hook(lambda gradient: watch.go(0))


def _owners(
    model: nn.Module, blocks: list[nn.Module], watch: _Watch, names: Mapping[int, str]
) -> dict[int, list[nn.Parameter]]:
    """Parameters by place, each once. Parameters of modules that were not called count as before the blocks."""
    owned: dict[int, list[nn.Parameter]] = {}
    seen: set[int] = set()
    inside = {id(p): number for number, block in enumerate(blocks, 1) for p in block.parameters()}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                place = inside.get(id(parameter), watch.users.get(names[id(module)], 0))
                owned.setdefault(place, []).append(parameter)
    return owned


def _second_uses(model: nn.Module, watch: _Watch, names: Mapping[int, str]) -> list[tuple[nn.Parameter, int]]:
    seen: set[int] = set()
    again = []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in seen:
                again.append((parameter, watch.users.get(names[id(module)], 0)))
            seen.add(id(parameter))
    return again


def _block(watch: _Watch, place: int, owners: Mapping[int, list[nn.Parameter]], read: set[int]) -> BlockShape:
    """`read`: memory that is read later. Memory that is never read is a weight's gradient."""
    operations = watch.counter.counts().operations
    starts = [start for start, _ in watch.marks]
    here = [(i, one) for i, one in enumerate(operations) if watch.marks[bisect_right(starts, i) - 1][1] == place]
    forward = [(i, one) for i, one in here if not one.backward]
    backward = [(i, one) for i, one in here if one.backward]
    saved = [entry for entry in watch.saved.values() if entry[0] == place]
    selective, compiled_selective, again = _selective(forward, max((entry[1] for entry in saved), default=0))
    both = [one for _, one in (*forward, *backward)]
    after = [one for _, one in backward]
    parameters = owners.get(place, [])
    saved_bytes = sum(entry[2] for entry in saved) / _ROWS
    heavy = _touched_by_products(both)
    return BlockShape(
        parameters=sum(p.numel() for p in parameters),
        split_parameters=sum(p.numel() for p in parameters if p.dim() >= 2),
        forward=_work([one for _, one in forward]),
        backward=_work(after),
        output_bytes=watch.output_bytes.get(place, 0) / _ROWS,
        kept=SavedActivations(saved_bytes, selective, _peak(after, read) / _ROWS, _peak(both, read) / _ROWS),
        compiled=SavedActivations(
            saved_bytes, compiled_selective, _peak(after, read & heavy) / _ROWS, _peak(both, read & heavy, held=True) / _ROWS
        ),
        selective_flops=again,
    )


def _work(operations: list[Operation]) -> PassWork:
    light = [one for one in operations if not one.flops]
    fused = [one for one in fuse(operations) if not one.flops]
    heavy = len(operations) - len(light)
    return PassWork(
        product_flops=sum(one.flops for one in operations if one.group != ATTENTION) / _ROWS,
        attention_flops=sum(one.flops * _seen(one) for one in operations if one.group == ATTENTION) / _ROWS,
        traffic_bytes=sum(one.bytes for one in light) / _ROWS,
        fused_traffic_bytes=sum(one.bytes for one in fused) / _ROWS,
        operators=len(operations),
        fused_operators=len(fused) + heavy,
    )


def _seen(attention: Operation) -> float:
    """The share of attention scores that is computed: half if attention is causal."""
    call = attention.call
    causal = call is not None and any(flag is True for flag in (*call.given, *call.named.values()))
    return 0.5 if causal else 1.0


def _selective(forward: list[tuple[int, Operation]], last_saved: int) -> tuple[float, float, float]:
    """Keep the outputs of attention and of every second product: bytes, bytes if compiled, and FLOPs of recomputed products."""
    kept = compiled = again = 0.0
    products = 0
    for index, one in forward:
        size = sum(written for _, written in one.writes)
        if one.group in _HEAVY:
            products += 1
            if products % 2 == 0:
                again += one.flops
                continue
        elif one.group != ATTENTION:
            continue
        kept += size
        compiled += size if index < last_saved - 1 else 0  # the last one is not saved: its output is only passed on
    return kept / _ROWS, compiled / _ROWS, again / _ROWS


def _touched_by_products(operations: list[Operation]) -> set[int]:
    return {number for one in operations if one.flops for number, _ in (*one.reads, *one.writes)}


def _peak(operations: list[Operation], counted: set[int], *, held: bool = False) -> int:
    """Peak of bytes in use, of the memory that these operators write, each block from its first write to its last use.

    `held`: outputs of products in the forward stay until the backward starts, which recomputes the rest from them.
    """
    turn = next((index for index, one in enumerate(operations) if one.backward and one.flops), 0)
    spans: dict[int, tuple[int, int, int]] = {}  # first write, last use, bytes
    given: set[int] = set()
    for index, one in enumerate(operations):
        for number, _ in one.reads:
            if number in spans:
                begin, end, size = spans[number]
                spans[number] = (begin, max(end, index), size)
            else:
                given.add(number)
        for number, written in one.writes:
            if number in counted and number not in given:
                begin, end, size = spans.get(number, (index, index, 0))
                until = turn if held and one.flops and not one.backward else index
                spans[number] = (begin, max(end, index, until), max(size, written))
    changes: dict[int, int] = {}
    for begin, end, size in spans.values():
        changes[begin] = changes.get(begin, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    live = peak = 0
    for index in sorted(changes):
        live += changes[index]
        peak = max(peak, live)
    return peak
