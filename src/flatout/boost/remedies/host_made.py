"""What a forward makes on the host and sends to the device: masks, positions, a constant.

A graph has no host. Where every call sends the same, of nothing that outlives the call, the graph takes it from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
_FROM_VALUES: frozenset[Any] = frozenset({torch.tensor, torch.as_tensor, Tensor.new_tensor})


class NotAlone(Exception):
    """A call does more than compute: a graph would do that once, and never again."""


class HostMade(TorchDispatchMode):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # torch leaves all compiled code aside while someone watches
        self._sees = all(getattr(part, "_compiled_call_impl", None) is None for part in module.modules())
        self._earlier: list[tuple[Tensor, Tensor | None]] = []  # what a call sent, and where it is on the device
        self._sent: list[tuple[Tensor, Tensor | None]] = []
        self._made: dict[int, Tensor] = {}  # by the place of what this call made on the host
        self._from_the_device = False

    @contextmanager
    def watched(self, captured: bool = False) -> Iterator[None]:
        """One call. A captured one takes what the one before sent."""
        if not self._sees:
            yield
            return
        self._earlier, self._sent, self._made = self._sent, [], {}
        self._from_the_device = captured
        try:
            with _SentByCopies(), self:
                yield
        finally:
            self._made = {}
        if captured and not self.is_settled():
            raise NotAlone

    def is_settled(self) -> bool:
        """Did the last call send what the one before it sent?"""
        pairs = zip(self._sent, self._earlier, strict=False)
        return len(self._sent) == len(self._earlier) and all(torch.equal(now, was) for (now, _), (was, _) in pairs)

    def places(self) -> list[Tensor]:
        """They are read by every replay."""
        return [place for _, place in self._sent if place is not None]

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        here = [leaf for leaf in tree_leaves((args, named)) if _is_on_host(leaf)]
        if op is _aten.lift_fresh.default and here[0].untyped_storage().resizable():
            here = []  # values of the source; an array's own memory would be lent, not made
        if any(_place(one) not in self._made for one in here):
            raise NotAlone  # it is kept between calls, and the next may find another value in it
        if op is _aten._to_copy.default and here and torch.device(named.get("device") or "cpu").type != "cpu":
            return self._copied(here[0], lambda: op(*args, **named))
        if op is _aten.copy_.default and here and not _is_on_host(args[0]):
            return args[0].copy_(self._copied(args[1], lambda: args[1].to(args[0].device)))
        result = op(*args, **named)
        found = tree_leaves(result)
        for one in found:
            if _is_on_host(one) and not any(_place(one) == _place(read) for read in here):
                self._made[_place(one)] = one
        if here and not all(_is_on_host(one) for one in found):
            self._sent += [(one.clone(), None) for one in here]  # a number that becomes part of a kernel's call
        return result

    def _copied(self, source: Tensor, copy: Callable[[], Tensor]) -> Tensor:
        if not self._from_the_device:
            result = copy()
            self._sent.append((source.clone(), result.clone()))
            return result
        number = len(self._sent)
        place = self._earlier[number][1] if number < len(self._earlier) else None
        if place is None:
            raise NotAlone
        self._sent.append((source.clone(), place))
        return place.clone()  # the model may write to what it got


class _SentByCopies(TorchFunctionMode):
    """A tensor that is made on the device from a list of numbers is made on the host, and then copied, out of sight."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if function in _FROM_VALUES and args and not isinstance(args[-1], Tensor) and not named.get("requires_grad"):
            asked = named.get("device", args[0].device if function is Tensor.new_tensor else None)
            if asked is not None and torch.device(asked).type != "cpu":
                return function(*args, **{**named, "device": "cpu"}).to(asked)
        return function(*args, **named)


def _is_on_host(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu"


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
