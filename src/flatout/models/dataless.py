"""Models larger than memory: beyond a limit their tensors have shape, dtype and device but no data.

Used to inspect a model without training it: `explain` counts the work of 70 billion weights on a laptop. Tensors are real until
they take `limit_bytes`. Later ones are torch's fake tensors, except small ones, because constructors compute with those
(`torch.linspace(0, rate, depth).tolist()`).
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

LIMIT_BYTES = 256 * 2**20  # 67 M weights, initialised in about a second; smaller models are built as in a run
_SMALL_BYTES = 64 * 2**10
_SMALL_LIMIT_BYTES = 256 * 2**20  # for small tensors that are real beyond the limit
_TAGS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}

# errors of a model that computes with values that do not exist
LOOKS_AT_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


class WeightsBudget:
    """How many bytes of real tensors may be allocated. After the first tensor that does not fit, only small ones are real."""

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
    """Every tensor created inside counts against the budget."""
    with _registered(budget), _initialised(), _Copying(), _Sparing(budget):
        yield


@contextmanager
def sparing_weights(budget: WeightsBudget) -> Iterator[None]:
    """Only parameters and buffers of modules count; other tensors created inside, such as data, stay real."""
    with _registered(budget), _initialised(), _Copying():
        yield


def is_dataless(model: nn.Module) -> bool:
    """Whether some tensors have no data: the model can be counted and traced but not run."""
    return _mode_of(model) is not None


def fake_copy(model: nn.Module) -> tuple[nn.Module, FakeTensorMode]:
    """A copy without data that shares nothing with the model, and the mode in which it can be called."""
    fake = _mode_of(model) or FakeTensorMode(allow_non_fake_inputs=True)
    # FakeCopyMode can't copy a tensor without data: it is used directly
    have_none = {id(one): one for one in _tensors(model) if isinstance(one, FakeTensor)}
    with FakeCopyMode(fake):
        return copy.deepcopy(model, memo=dict(have_none)), fake


def stand_in(tree: Any) -> Any:
    """Replace tensors without data by tensors of ones that take the memory of one number."""
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
                return args[0]  # initialising a tensor without data takes no time
            return func(*args, **kwargs)
        if func.is_view or func._schema.is_mutable or _TAGS & {*func.tags}:
            return func(*args, **kwargs)  # creates nothing, or nothing large
        try:
            with self._budget.fake:
                without = func(*args, **kwargs)
        except Exception:  # not a torch operator: the size of its result is unknown
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
    """Modules created by copying one, as nn.TransformerEncoder creates its layers."""

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
    """In-place operators that write to their first argument and keep its shape."""
    name = func._schema.name
    in_place = name.endswith("_") and not name.endswith("__") and func._schema.is_mutable
    return bool(in_place and torch.Tag.inplace_view not in func.tags and args and isinstance(args[0], FakeTensor))


@contextmanager
def _registered(budget: WeightsBudget) -> Iterator[None]:
    """Tensors that no operator created (from NumPy, from a file) are counted when a module registers them."""
    swapped: Any = WeakIdKeyDictionary()  # type: ignore[no-untyped-call]  # keeps tied tensors tied

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
    """torch.nn.init skips tensors without data: some of its functions would draw numbers until they are in range.

    Its internal helpers skip them too, since a module may have imported the functions themselves.
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
    """Parameters, buffers, and tensors in plain attributes of modules."""
    for module in model.modules():
        for value in tree_leaves(vars(module)):
            if isinstance(value, Tensor):
                yield value


def _mode_of(model: nn.Module) -> FakeTensorMode | None:
    return next((one.fake_mode for one in _tensors(model) if isinstance(one, FakeTensor)), None)
