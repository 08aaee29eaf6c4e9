"""Trace a deep model in the time of a shallow one: of equal blocks only a few are traced, the others copy their result.

A block is copied if it has the same form as a traced block and is called with arguments of the same form. Number attributes may
differ, such as a layer index: if the traced forward reads them, the block is also called, to check that it does the same work.
Its operators are then those of the traced block, with its own weights, inputs and outputs: the same list that tracing it would
give. A block that stores something during its call, or returns its input, is always traced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from flatout.measure.counts import Counter, Operation, Touched
from flatout.models.blocks import blocks_of, differing_numbers, form_of, form_of_value
from flatout.models.dataless import fake_copy

_TRACED_FIRST = 3  # and the last one: so the copied second block also has traced neighbours


@dataclass
class _Call:
    """One call of a block: numbers of its memory in a fixed order, and between which operators it happened."""

    given: tuple[int, ...] = ()  # weights, weights as seen by a functional call, arguments
    output: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()  # of the output, of the input
    forward: tuple[int, int] = (0, 0)
    backward: tuple[int, int] = (0, 0)

    @property
    def memory(self) -> tuple[int, ...]:
        return (*self.given, *self.output, *self.gradients)


@dataclass
class _Traced:
    """A traced block that others can copy."""

    call: _Call = field(default_factory=_Call)
    arguments: object = None  # form of its arguments
    calls: object = None  # operators and shapes of its forward; None: it reads no number that differs in another block
    like: tuple[Any, Any] | None = None  # leaves and structure of its output; None: it can't be copied


class Repeats:
    """Which blocks of a model are copied. After a trace, `stands_for[i]` is the block that was traced for block i.

    `compared`: blocks with different numbers that were found to do the same work. This trace adds its findings, so that the
    next trace of the same model need not check again.
    """

    def __init__(self, model: nn.Module, compared: set[int] | None = None) -> None:
        self.blocks = blocks_of(model)
        self._compared = set() if compared is None else compared
        self.stands_for = list(range(len(self.blocks)))
        self._copies: list[tuple[_Traced, _Call]] = []
        alike: dict[object, list[int]] = defaultdict(list)
        if not _share_weights(self.blocks):
            for place, block in enumerate(self.blocks):
                alike[form_of(block, numbers=False)].append(place)
        self._groups = [places for places in alike.values() if len(places) > _TRACED_FIRST + 1]
        self._differing: dict[int, tuple[set[int], dict[str, set[str]]]] = {}  # by traced block: its copies, differing numbers
        for places in self._groups:
            form, second = form_of(self.blocks[places[1]]), places[1]
            others = {place for place in places if place not in self._compared and form_of(self.blocks[place]) != form}
            names = differing_numbers(self.blocks[second], [self.blocks[place] for place in sorted(others)])
            self._differing[second] = (others, names)

    @contextmanager
    def counted_by(self, counter: Counter) -> Iterator[None]:
        """Inside, calls of blocks are traced or copied; afterwards `operations` returns all operators."""
        own = {place: vars(self.blocks[place]).get("forward") for places in self._groups for place in places}
        for places in self._groups:
            others, names = self._differing[places[1]]
            traced = _Traced()
            self._watch(places[1], traced, counter, names)
            for place in places[_TRACED_FIRST:-1]:
                self._copy(place, places[1], traced, counter, to_compare=place in others)
        try:
            yield
        finally:
            for place, forward in own.items():
                if forward is None:
                    vars(self.blocks[place]).pop("forward", None)
                else:
                    self.blocks[place].forward = forward

    def operations(self, counted: Sequence[Operation]) -> tuple[Operation, ...]:
        """The counted operators, with those of copied blocks inserted where they belong."""
        fresh = count(10**9)
        backwards = [
            (call.backward[0], -turn, traced, call) for turn, (traced, call) in enumerate(self._copies) if call.gradients
        ]
        forwards = [(call.forward[0], turn, traced, call) for turn, (traced, call) in enumerate(self._copies)]
        numbers = {id(call): _numbers_of_a_copy(traced.call, call, counted, fresh) for traced, call in self._copies}
        added: dict[int, list[Operation]] = defaultdict(list)
        for where, _, traced, call in sorted(forwards, key=_by_turn):
            added[where] += [_renumbered(one, numbers[id(call)]) for one in counted[slice(*traced.call.forward)]]
        for where, _, traced, call in sorted(backwards, key=_by_turn):  # backward visits the last block first
            added[where] += [_renumbered(one, numbers[id(call)]) for one in counted[slice(*traced.call.backward)]]
        found: list[Operation] = []
        for place in range(len(counted) + 1):
            found += added.get(place, ())
            found += counted[place : place + 1]
        return tuple(found)

    @property
    def read_by_copies(self) -> set[int]:
        """Memory of other blocks that copied blocks read."""
        return {number for _, call in self._copies for number in (*call.given, *call.gradients[:1])}

    def _watch(self, place: int, traced: _Traced, counter: Counter, differing: Mapping[str, set[str]]) -> None:
        block = self.blocks[place]
        forward: Callable[..., Any] = block.forward
        own = _weights(block)

        def watched(*given: Any, **named: Any) -> Any:
            before, arguments = form_of(block), _form_of_arguments(given, named)
            leaves, spec = tree_flatten((given, named))
            leaves = [_apart(leaf) for leaf in leaves]
            call = _Call(_numbers(counter, [*own, *_weights(block), *leaves]))
            begin = counter.done
            again, named_again = tree_unflatten(leaves, spec)
            with _readings(block, differing) as read:
                output = forward(*again, **named_again)
            call.forward = (begin, counter.done)
            out_leaves, out_spec = tree_flatten(output)
            call.output = _numbers(counter, out_leaves)
            sources, results = _differentiable(leaves), _differentiable(out_leaves)
            new = set(call.output).isdisjoint(call.given) and len(set(call.output)) == len(call.output)
            kept_nothing = form_of(block) == before
            if new and kept_nothing and len(sources) == len(results) <= 1 and _only_tensors(out_leaves):
                traced.like, traced.arguments, traced.call = (out_leaves, out_spec), arguments, call
                traced.calls = _calls(counter, forward, given, named) if read else None
                if results:
                    results[0].register_hook(lambda gradient: _begin_backward(call, counter, gradient))
                    sources[0].register_hook(lambda gradient: _end_backward(call, counter, gradient))
            return output

        block.forward = watched

    def _copy(self, place: int, of: int, traced: _Traced, counter: Counter, to_compare: bool) -> None:
        block = self.blocks[place]
        forward: Callable[..., Any] = block.forward
        own = _weights(block)

        def copied(*given: Any, **named: Any) -> Any:
            same = traced.like is not None and _form_of_arguments(given, named) == traced.arguments
            if same and to_compare and traced.calls is not None:
                same = _calls(counter, forward, given, named) == traced.calls
            if not same:
                self.stands_for[place] = place
                return forward(*given, **named)
            self.stands_for[place] = of
            self._compared.add(place)
            leaves = tree_leaves((given, named))
            call = _Call(_numbers(counter, [*own, *_weights(block), *leaves]), forward=(counter.done, counter.done))
            assert traced.like is not None
            out_leaves, spec = traced.like
            sources, results = _differentiable(leaves), _differentiable(out_leaves)
            made = [
                _Copied.apply(sources[0], one, call, counter)  # type: ignore[no-untyped-call]
                if results and one is results[0]
                else torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
                for one in out_leaves
            ]
            call.output = _numbers(counter, made)
            self._copies.append((traced, call))
            return tree_unflatten(made, spec)

        block.forward = copied


def callable_copy(model: nn.Module) -> tuple[nn.Module, Callable[[], AbstractContextManager[None]]]:
    """A copy without data, and a context in which it can be called to get its output's shape. Of blocks that differ only in
    numbers, which do not change shapes, most are not called."""
    copied, fake = fake_copy(model)
    repeats = Repeats(copied, compared=set(range(len(blocks_of(copied)))))

    @contextmanager
    def calling() -> Iterator[None]:
        with fake, Counter() as counter, repeats.counted_by(counter):
            yield

    return copied, calling


class _Copied(torch.autograd.Function):
    """Stands for a block that is not called: an output of the right form, and a gradient for its input."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, like: Tensor, call: _Call, counter: Counter) -> Tensor:
        ctx.source, ctx.call, ctx.counter = (source.shape, source.stride(), source.dtype, source.device), call, counter
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shape, strides, dtype, device = ctx.source
        made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        _begin_backward(ctx.call, ctx.counter, gradients[0])
        _end_backward(ctx.call, ctx.counter, made)
        return made, None, None, None


class _Sequence(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which operators are called, and the shapes of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[object] = []

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [(tuple(one.shape), one.dtype) for one in tree_leaves(result) if isinstance(one, Tensor)]
        self.found.append((func, given))
        return result


@contextmanager
def _readings(block: nn.Module, watched: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Which of the `watched` attributes are read inside."""
    read: set[str] = set()
    modules = {name: module for name, module in block.named_modules() if name in watched}
    classes = {name: type(module) for name, module in modules.items()}
    try:
        for name, module in modules.items():
            module.__class__ = _listening(classes[name], watched[name], read)
        yield read
    finally:
        for name, module in modules.items():
            module.__class__ = classes[name]


def _listening(kind: type, names: set[str], read: set[str]) -> type:
    reads: Any = kind.__getattribute__

    def listen(self: Any, name: str) -> Any:
        if name in names:
            read.add(name)
        return reads(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": listen, "__module__": kind.__module__})


def _calls(counter: Counter, forward: Callable[..., Any], given: Any, named: Any) -> list[object]:
    sequence, cached = _Sequence(), torch.is_autocast_cache_enabled()
    counter.paused = True
    torch.set_autocast_cache_enabled(False)  # otherwise the call that counts would find weights that are already cast
    try:
        with torch.no_grad(), sequence:
            forward(*given, **named)
    finally:
        counter.paused = False
        torch.set_autocast_cache_enabled(cached)
    return sequence.found


def _begin_backward(call: _Call, counter: Counter, gradient: Tensor) -> None:
    call.backward, call.gradients = (counter.done, counter.done), (counter.number_of(gradient),)


def _end_backward(call: _Call, counter: Counter, gradient: Tensor) -> None:
    call.backward = (call.backward[0], counter.done)
    call.gradients = (*call.gradients, counter.number_of(gradient))


def _apart(leaf: Any) -> Any:
    """The same memory, with a gradient from this block alone."""
    return leaf.view_as(leaf) if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def _weights(block: nn.Module) -> list[Tensor]:
    return [*block.parameters(), *block.buffers()]


def _share_weights(blocks: Sequence[nn.Module]) -> bool:
    owners: dict[int, int] = {}
    return any(owners.setdefault(id(one), place) != place for place, block in enumerate(blocks) for one in _weights(block))


def _differentiable(leaves: Sequence[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]


def _only_tensors(leaves: Sequence[Any]) -> bool:
    return all(isinstance(leaf, Tensor) and leaf.layout is torch.strided for leaf in leaves)


def _numbers(counter: Counter, leaves: Sequence[Any]) -> tuple[int, ...]:
    return tuple(counter.number_of(leaf) for leaf in leaves if isinstance(leaf, Tensor))


def _form_of_arguments(given: Any, named: Any) -> object:
    leaves, spec = tree_flatten((given, named))
    return tuple(form_of_value(leaf) for leaf in leaves), str(spec), torch.is_grad_enabled()


def _by_turn(copied: tuple[int, int, _Traced, _Call]) -> tuple[int, int]:
    return copied[:2]


def _numbers_of_a_copy(of: _Call, call: _Call, counted: Sequence[Operation], fresh: Iterator[int]) -> dict[int, int]:
    """Map memory numbers of a traced block to those of a copy. Memory that both only read, such as a mask, stays the same."""
    operations = [*counted[slice(*of.forward)], *counted[slice(*of.backward)]]
    own = {number: next(fresh) for one in operations for number, _ in one.writes}
    return own | dict(zip(of.memory, call.memory, strict=False))  # no gradients if there was no backward


def _renumbered(one: Operation, numbers: Mapping[int, int]) -> Operation:
    return replace(one, reads=_mapped(one.reads, numbers), writes=_mapped(one.writes, numbers))


def _mapped(touched: Touched, numbers: Mapping[int, int]) -> Touched:
    return tuple((numbers.get(number, number), size_bytes) for number, size_bytes in touched)
