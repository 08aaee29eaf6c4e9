"""A CUDA graph without CUDA: records the operations of a step on its tensors, and computes them again without its Python code.

As in a capture, recording computes nothing that lasts, and what Python decided or counted while it was recorded is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

READS = ("aten._local_scalar_dense", "aten.nonzero", "aten.lift_fresh", "aten.lift_fresh_copy")
"""Operations that wait for a device, or copy something of the host to it."""


class Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__qualname__.startswith(READS) or str(func).startswith(READS):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}\nCUDA kernel errors might be ...")
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and id(one) not in self._made and id(one) not in self.before:
                self.before[id(one)] = one, one.detach().clone()
        result = func(*args, **kwargs)
        self._made |= {id(one) for one in tree_leaves(result) if isinstance(one, Tensor)}
        self.calls.append((func, args, kwargs, result))
        return result


def recorded(device: torch.device, step: Callable[[], None]) -> Callable[[], object]:
    recording = Recording()
    try:
        with recording:
            step()
    finally:
        with torch.no_grad():
            for there, value in reversed(recording.before.values()):
                there.copy_(value)
    calls = recording.calls

    @torch.no_grad()
    def replay() -> None:
        known: dict[int, Any] = {}

        def now(one: Any) -> Any:
            return known.get(id(one), one) if isinstance(one, Tensor) else one

        for func, args, kwargs, result in calls:
            found = func(*tree_map(now, args), **tree_map(now, kwargs))
            for old, new in zip(tree_leaves(result), tree_leaves(found), strict=True):
                if isinstance(old, Tensor):
                    known[id(old)] = new

    return replay
