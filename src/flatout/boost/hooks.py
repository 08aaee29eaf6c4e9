"""The places where remedies change a script: module calls that it makes directly, and attributes of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from flatout.doctor.observing.calling import is_wrapper
from flatout.doctor.patches import Patches

Prepare = Callable[[nn.Module], bool]  # False: call it again at the next call
Around = Callable[[nn.Module], AbstractContextManager[None]]
Inputs = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]
Outputs = Callable[[nn.Module, Any], Any]
Call = Callable[..., Any]
Instead = Callable[[Call, nn.Module, tuple[Any, ...], dict[str, Any]], Any]  # gets the original call


class Hooks:
    def __init__(self) -> None:
        self.patches = Patches()
        self.prepare: list[Prepare] = []
        self.around: list[Around] = []
        self.inputs: list[Inputs] = []
        self.outputs: list[Outputs] = []
        self.calls: list[Instead] = []
        self._main = threading.get_ident()
        self._inside = False
        self._prepared: WeakKeyDictionary[nn.Module, list[Prepare]] = WeakKeyDictionary()  # pending preparations of each module

    def install(self) -> None:
        """Call this after all remedies were applied."""
        if self.prepare or self.around or self.inputs or self.outputs or self.calls:
            self.patches.wrap(nn.Module, "__call__", self._watched)
        self.patches.wrap(torch.jit, "script", self._of_plain_source)

    def _of_plain_source(self, original: Any) -> Any:
        """TorchScript reads the source of everything a model calls, and can't compile the remedies' source."""

        def script(*args: Any, **named: Any) -> Any:
            with self.patches.lifted():
                return original(*args, **named)

        return script

    def _watched(self, original: Any) -> Any:
        def __call__(module: nn.Module, *args: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or is_traced() or self._inside or threading.get_ident() != self._main:
                return original(module, *args, **named)
            if is_wrapper(module):
                return original(module, *args, **named)  # which calls the model
            return self._outermost(original, module, args, named)

        return __call__

    def _outermost(self, original: Any, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        waiting = self._prepared.get(module)
        if waiting is None:
            waiting = self._prepared[module] = list(self.prepare)
        if waiting:
            waiting[:] = [prepare for prepare in waiting if not prepare(module)]
        for change in self.inputs:
            args, named = change(module, args, named)
        self._inside = True
        try:
            with ExitStack() as stack:
                for around in self.around:
                    stack.enter_context(around(module))
                result = self._called(partial(original, module), module, args, named)
        finally:
            self._inside = False
        for change_result in self.outputs:
            result = change_result(module, result)
        return result

    def _called(self, call: Call, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        for instead in self.calls:
            call = partial(_through, instead, call, module)
        return call(*args, **named)


def is_traced() -> bool:
    """Is torch.jit writing down what is computed? It does so twice and compares, so nothing may be added to one of them."""
    return torch._C._get_tracing_state() is not None


def _through(instead: Instead, call: Call, module: nn.Module, *args: Any, **named: Any) -> Any:
    return instead(call, module, args, named)


def learns(module: nn.Module) -> bool:
    """Does it have weights? A loss module has none."""
    return next(module.parameters(), None) is not None
