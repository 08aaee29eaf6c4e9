"""Tracks tensors that a forward creates on the host and sends to the device: masks, positions, constants.

A CUDA graph can't run host code. If every call sends the same values, created in the call, the graph uses a copy on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
_FROM_VALUES: frozenset[Any] = frozenset({torch.tensor, torch.as_tensor, Tensor.new_tensor})
# operators whose result the host waits for: they break a capture, which leaves torch in a bad state
_READ_BY_THE_HOST: frozenset[Any] = frozenset(
    {
        _aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default, _aten.equal.default,
        _aten._unique2.default, _aten.unique_dim.default, _aten.unique_consecutive.default, _aten.bincount.default,
        _aten.repeat_interleave.Tensor,
    }
)  # fmt: skip
_TO_VALUES: frozenset[Any] = frozenset({Tensor.tolist, Tensor.numpy, Tensor.__array__})


class NotAlone(Exception):
    """The call does more than compute on the device, and a replayed graph would not repeat that."""


class HostMade(TorchDispatchMode):
    """Observes calls of `module`, without compiled code, whose operations would not be visible."""

    def __init__(self, module: nn.Module, weights: Iterable[Tensor] = ()) -> None:
        """`weights`: the trained ones. The gradient of any other tensor would be lost."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.outside: dict[int, Tensor] = {}  # device tensors that the last call read but did not create
        self._weights = {id(weight) for weight in weights}
        self._lists = {
            id(value) for part in module.modules() for value in vars(part).values() if isinstance(value, list | np.ndarray)
        }
        self._written: dict[Any, tuple[Tensor, Tensor]] = {}  # existing tensors that calls wrote to, and their earlier content
        self._earlier: list[tuple[Tensor, Tensor | None]] = []  # what the previous call sent, and its copy on the device
        self._sent: list[tuple[Tensor, Tensor | None]] = []
        self._made: dict[int, Tensor] = {}  # host tensors that this call created, by storage
        self._made_there: set[int] = set()
        self.wrote: set[Any] = set()  # existing tensors that the last call wrote to
        self._from_the_device = self.lets_pass = self._refused = False

    @contextmanager
    def watched(self, captured: bool = False, only_writes: bool = False) -> Iterator[None]:
        """Observes one call. `captured`: use the copies that the previous call sent. `only_writes`: only note writes."""
        self._earlier, self._sent = self._sent, []
        self._made, self._made_there, self.outside, self.wrote = {}, set(), {}, set()
        self._from_the_device, self.lets_pass, self._refused = captured, only_writes, False
        try:
            with torch.compiler.set_stance("force_eager"), _Values(self), self:
                yield
        finally:
            self._made = {}
        if self._refused or (captured and not self.is_settled()):  # the model may have caught the exception
            raise NotAlone

    def is_settled(self) -> bool:
        """Did the last two calls send the same?"""
        pairs = zip(self._sent, self._earlier, strict=False)
        return len(self._sent) == len(self._earlier) and all(torch.equal(now, was) for (now, _), (was, _) in pairs)

    def places(self) -> list[Tensor]:
        """Device copies of sent tensors, which every replay reads."""
        return [place for _, place in self._sent if place is not None]

    def put_back(self) -> None:
        """Restores existing device tensors that the calls wrote to."""
        with torch.no_grad():
            for tensor, was in reversed(self._written.values()):
                tensor.data.copy_(was)
        self._written = {}

    def refuse(self) -> NoReturn:
        self._refused = True
        raise NotAlone

    def is_kept(self, value: Any) -> bool:
        """Does it outlive the call, so that its value may change before the next?"""
        if isinstance(value, np.ndarray) and value.base is not None and self.is_kept(value.base):
            return True
        return id(value) in self._lists or (_is_on_host(value) and place_of(value) not in self._made)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if self.lets_pass:
            return self._done(op, args, named)
        read = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        here, there = [one for one in read if _is_on_host(one)], [one for one in read if not _is_on_host(one)]
        if op is _aten.lift_fresh.default and here and here[0].untyped_storage().resizable():
            here = []  # a literal in the source; an array's memory would be shared, not new
        if any(self.is_kept(one) for one in here):
            self.refuse()
        if any(one.requires_grad and one.is_leaf and id(one) not in self._weights for one in there):
            self.refuse()
        if there and _is_read_by_the_host(op, args, named):
            self.refuse()
        torchs_own = _generator_of_cudnn(op, args)
        self.outside |= {place_of(one): one for one in there if place_of(one) not in self._made_there and one is not torchs_own}
        if not self._from_the_device:
            self._note_writes(op, args, named)
        if op is _aten._to_copy.default and here and torch.device(named.get("device") or "cpu").type != "cpu":
            return self._noted(self._copied(here[0], lambda: op(*args, **named)))
        if op is _aten.copy_.default and here and there:
            return args[0].copy_(self._copied(args[1], lambda: args[1].to(args[0].device)))
        result = op(*args, **named)
        places = {place_of(one) for one in (*here, *there)}
        found = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        for one in found:
            if _is_on_host(one) and not there and place_of(one) not in places:  # device values depend on the batch
                self._made[place_of(one)] = one
            elif not _is_on_host(one) and place_of(one) not in places:
                self._noted(one)
        if here and not (found and all(_is_on_host(one) for one in found)):
            self._sent += [(one.clone(), None) for one in here]  # a number that becomes a kernel argument
        return result

    def _note_writes(self, op: Any, args: Any, named: Any) -> None:
        given = zip(op._schema.arguments, args, strict=False)
        values = [value for about, value in given if about.alias_info is not None and about.alias_info.is_write]
        values += [named[about.name] for about in op._schema.arguments if about.name in named and about.is_out]
        values.append(_generator_of_cudnn(op, args))
        for one in tree_leaves(values):
            if isinstance(one, Tensor) and not _is_on_host(one) and place_of(one) not in self._made_there:
                self._keep(one)

    def _keep(self, tensor: Tensor) -> None:
        """Saves the content until `put_back`."""
        part = place_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
        self.wrote.add(part)
        if part not in self._written:
            self._written[part] = tensor.detach(), tensor.detach().clone()

    def _done(self, op: Any, args: Any, named: Any) -> Any:
        """Runs any operator, and notes its writes."""
        self._note_writes(op, args, named)
        result = op(*args, **named)
        places = {place_of(one) for one in tree_leaves((args, named)) if isinstance(one, Tensor)}
        self._made_there |= {place_of(one) for one in tree_leaves(result) if isinstance(one, Tensor)} - places
        return result

    def _copied(self, source: Tensor, copy: Callable[[], Tensor]) -> Tensor:
        if not self._from_the_device:
            result = copy()
            self._sent.append((source.clone(), result.clone()))
            return result
        number = len(self._sent)
        place = self._earlier[number][1] if number < len(self._earlier) else None
        if place is None:
            self.refuse()
        self._sent.append((source.clone(), place))
        return place.clone()  # the model may write to its copy

    def _noted(self, made: Tensor) -> Tensor:
        self._made_there.add(place_of(made))
        return made


class _Values(TorchFunctionMode):
    """Makes transfers visible that torch hides: a device tensor created from numbers is created on the host, then copied."""

    def __init__(self, watching: HostMade) -> None:
        super().__init__()
        self._watching = watching

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if self._watching.lets_pass:
            return function(*args, **named)
        if function in _TO_VALUES and self._watching.is_kept(args[0]):
            self._watching.refuse()
        if function not in _FROM_VALUES or not args or isinstance(args[-1], Tensor):
            return function(*args, **named)
        if self._watching.is_kept(args[-1]) or any(isinstance(leaf, Tensor) for leaf in tree_leaves(args[-1])):
            self._watching.refuse()
        asked = named.get("device", args[0].device if function is Tensor.new_tensor else None)
        if asked is None or torch.device(asked).type == "cpu" or named.get("requires_grad"):
            return function(*args, **named)
        return function(*args, **{**named, "device": "cpu"}).to(asked)


def _is_read_by_the_host(op: Any, args: Any, named: Any) -> bool:
    if op in _READ_BY_THE_HOST:
        return True
    if op is _aten._to_copy.default:
        return torch.device(named.get("device") or args[0].device).type == "cpu" and not _is_on_host(args[0])
    if op is _aten.copy_.default:
        return _is_on_host(args[0]) and not _is_on_host(args[1])
    if op in (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default):
        by_mask = any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
        return by_mask and (op is _aten.index.Tensor or args[2].numel() != 1)  # the size of the result depends on the mask
    return False


def _generator_of_cudnn(op: Any, args: Any) -> Tensor | None:
    """The dropout state that torch creates for the first recurrent layer and shares among all of them."""
    if op is not _aten._cudnn_rnn.default:
        return None
    names = [argument.name for argument in op._schema.arguments]
    found: Tensor | None = dict(zip(names, args, strict=False)).get("dropout_state")
    return found


def _is_on_host(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu"


def place_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
