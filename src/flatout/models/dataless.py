"""Models that are larger than memory: their tensors know shape, format and device, and from a limit on have no data.

For whoever looks at a model and does not train it: `explain` counts the work of 70 billion weights on a laptop. Tensors are
real until `limit_bytes` of them are held. Later ones are torch's fake tensors, except for small ones: constructors compute
with those (`torch.linspace(0, rate, depth).tolist()`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import init
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

LIMIT_BYTES = 256 * 2**20  # 67 M weights, drawn in about a second: a smaller model is built as a run builds it
_SMALL_BYTES = 64 * 2**10
_SMALL_LIMIT_BYTES = 256 * 2**20  # of small ones that are real although the limit was reached
_TAGS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}

# what a model raises that computes with numbers which are not there
LOOKS_AT_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


class WeightsBudget:
    """How many bytes of real tensors may be held. Once there was no room for one, only small ones still get any."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.spent = False
        self.limit_bytes = limit_bytes
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self._held_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        if self.spent and size_bytes > _SMALL_BYTES:
            return False
        most_bytes = self.limit_bytes + (_SMALL_LIMIT_BYTES if self.spent else 0)
        if self._held_bytes + size_bytes > most_bytes:
            self._held = {key: (ref, size) for key, (ref, size) in self._held.items() if not ref.expired()}
            self._held_bytes = sum(size for _, size in self._held.values())
        if self._held_bytes + size_bytes <= most_bytes:
            return True
        self.spent = True
        return size_bytes <= _SMALL_BYTES and self._held_bytes + size_bytes <= self.limit_bytes + _SMALL_LIMIT_BYTES

    def hold(self, tensor: Tensor) -> None:
        reference, size_bytes = StorageWeakRef(tensor.untyped_storage()), tensor.untyped_storage().nbytes()
        if reference.cdata not in self._held:
            self._held[reference.cdata] = (reference, size_bytes)
            self._held_bytes += size_bytes

    def holds(self, tensor: Tensor) -> bool:
        found = self._held.get(StorageWeakRef(tensor.untyped_storage()).cdata)
        return found is not None and not found[0].expired()


@contextmanager
def sparing(budget: WeightsBudget) -> Iterator[None]:
    """Every tensor that is made within counts against the budget, whoever makes it."""
    with _registered(budget), _initialised(), _Copying(), _Sparing(budget):
        yield


@contextmanager
def sparing_weights(budget: WeightsBudget) -> Iterator[None]:
    """Only the parameters and buffers of modules count: whatever else is made within, such as data, stays real."""
    with _registered(budget), _initialised(), _Copying():
        yield


def is_dataless(model: nn.Module) -> bool:
    """Whether some of it has no data: then it can be counted and traced, not run."""
    return _mode_of(model) is not None


def fake_copy(model: nn.Module) -> tuple[nn.Module, FakeTensorMode]:
    """A copy without data, which shares nothing with a model that has some; and the mode in which it can be called."""
    fake = _mode_of(model) or FakeTensorMode(allow_non_fake_inputs=True)
    # FakeCopyMode can't copy what has no data already: it is handed on as it is
    have_none = {id(one): one for one in _tensors(model) if isinstance(one, FakeTensor)}
    with FakeCopyMode(fake):
        return copy.deepcopy(model, memo=dict(have_none)), fake


def stand_in(tree: Any) -> Any:
    """With numbers (all of them 1) in place of tensors that have none, in the memory of one number."""
    return tree_map_only(FakeTensor, lambda one: torch.ones((), dtype=one.dtype).expand(one.shape), tree)


def weights_bytes(model: nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))


class _Sparing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, budget: WeightsBudget) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._budget = budget

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(isinstance(one, FakeTensor) for one in given):
            if _writes_numbers_only(func, args):
                return args[0]  # initialising what has no data takes no time
            return func(*args, **kwargs)
        if func.is_view or func._schema.is_mutable or _TAGS & {*func.tags}:
            return func(*args, **kwargs)  # makes nothing, or nothing large
        try:
            with self._budget.fake:
                without = func(*args, **kwargs)
        except Exception:  # no operator of torch's own; of the user's, it can't be known what it makes
            return func(*args, **kwargs)
        size_bytes = sum(_bytes(leaf) for leaf in tree_leaves(without))
        if not self._budget.has_room(size_bytes):
            return without
        made = func(*args, **kwargs)
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._budget.hold(leaf)
        return made


class _Copying(TorchFunctionMode):  # type: ignore[no-untyped-call]
    """Modules that are made as copies of one, as nn.TransformerEncoder makes its layers."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__deepcopy__ or not isinstance(args[0], FakeTensor):
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            made = torch.empty_like(tensor.detach())
            memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
        return memo[id(tensor)]


def _writes_numbers_only(func: Any, args: tuple[Any, ...]) -> bool:
    """In place, into its first argument, which keeps its shape."""
    name = func._schema.name
    in_place = name.endswith("_") and not name.endswith("__") and func._schema.is_mutable
    return bool(in_place and torch.Tag.inplace_view not in func.tags and args and isinstance(args[0], FakeTensor))


@contextmanager
def _registered(budget: WeightsBudget) -> Iterator[None]:
    """Tensors that no operator made (of NumPy, of a file) are met where a module gets them."""
    swapped: Any = WeakIdKeyDictionary()  # type: ignore[no-untyped-call]  # tied ones stay tied

    def swap(module: nn.Module, name: str, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
            return None
        if tensor.device.type == "meta" or budget.holds(tensor):
            return None
        if tensor not in swapped:
            if budget.has_room(_bytes(tensor)):
                budget.hold(tensor)
                return None
            swapped[tensor] = budget.fake.from_tensor(tensor, static_shapes=True)
        return swapped[tensor]

    register: tuple[Callable[..., Any], ...] = (
        register_module_parameter_registration_hook,
        register_module_buffer_registration_hook,
    )
    handles = [one(swap) for one in register]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _initialised() -> Iterator[None]:
    """torch.nn.init passes over tensors without data: some of its functions draw until the numbers are as they should be.

    Helpers by which they work are passed over too, since a module may have imported the functions themselves.
    """
    before = {name: one for name, one in vars(init).items() if name.endswith("_") and isinstance(one, FunctionType)}

    def passing(function: FunctionType) -> Callable[..., Any]:
        @wraps(function)
        def filled(tensor: Any, *given: Any, **named: Any) -> Any:
            return tensor if isinstance(tensor, FakeTensor) else function(tensor, *given, **named)

        return filled

    try:
        for name, function in before.items():
            setattr(init, name, passing(function))
        yield
    finally:
        for name, function in before.items():
            setattr(init, name, function)


def _bytes(leaf: object) -> int:
    return leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else 0


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers, and what modules hold as plain attributes."""
    for module in model.modules():
        for value in tree_leaves(vars(module)):
            if isinstance(value, Tensor):
                yield value


def _mode_of(model: nn.Module) -> FakeTensorMode | None:
    return next((one.fake_mode for one in _tensors(model) if isinstance(one, FakeTensor)), None)
