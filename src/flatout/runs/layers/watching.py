"""Watches one forward and one backward pass: what each module returned, computed, kept for the backward, and how long it took.

A module that is called twice, or under two names, is one row; its figures are those of all its calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from flatout.measure.clock import synchronize


@dataclass
class LayerFigures:
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    calls: int = 0
    forward_flops: int = 0
    kept_bytes: int = 0
    seconds: float = 0.0


class StepWatch:
    """`found` is by the id of the module; figures include the modules inside."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.found = {id(module): LayerFigures() for module in model.modules()}
        self.flops = 0
        self.seconds = 0.0
        self._model, self._device = model, device
        self._counter: Any = FlopCounterMode(display=False)
        self._open: list[LayerFigures] = []
        self._known = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        self._waiting: list[LayerFigures] = []  # modules whose inputs need no gradient: their backward ends last
        self._began: dict[int, float] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Shapes, arithmetic and memory."""
        with self._hooked(self._enter, self._leave):
            with self._counter, torch.autograd.graph.saved_tensors_hooks(self._kept, lambda tensor: tensor):
                yield
            self.flops = int(self._counter.get_total_flops())

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Times of one step. Waits for the device at every module, so that the whole is a little slower."""
        self._waiting, began_s = [], self._now()
        with self._hooked(self._start, self._stop):
            yield
        ended_s = self._now()
        for one in self._waiting:
            one.seconds += ended_s - self._began[id(one)]
        self.seconds += ended_s - began_s

    @contextmanager
    def _hooked(self, before: Callable[..., None], after: Callable[..., None]) -> Iterator[None]:
        hooks: list[Any] = []
        for module in self._model.modules():
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(module.register_forward_hook(after, with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, given: Any, named: Any) -> None:
        one = self.found[id(module)]
        one.forward_flops -= int(self._counter.get_total_flops())
        self._open.append(one)

    def _leave(self, module: nn.Module, given: Any, named: Any, output: Any) -> None:
        one = self.found[id(module)]
        one.forward_flops += int(self._counter.get_total_flops())
        one.calls += 1
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        one.shapes = one.shapes or shapes
        self._open.pop()

    def _kept(self, tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in self._known:  # weights are there anyway, and a tensor that two layers keep is one
            self._known.add(tensor.data_ptr())
            for one in {id(one): one for one in self._open}.values():
                one.kept_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def _start(self, module: nn.Module, given: Any, named: Any) -> None:
        self.found[id(module)].seconds -= self._now()

    def _stop(self, module: nn.Module, given: Any, named: Any, output: Any) -> None:
        one = self.found[id(module)]
        one.seconds += self._now()
        outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        inputs = [leaf for leaf in tree_leaves((given, named)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not outputs:
            return
        began: list[float] = []

        def begin(gradient: Tensor) -> None:
            if not began:
                began.append(self._now())
                if not inputs:
                    self._began[id(one)] = began[0]
                    self._waiting.append(one)

        ended: list[float] = []

        def end(gradient: Tensor) -> None:
            if began:
                one.seconds += self._now() - (ended[-1] if ended else began[0])
                ended.append(self._now())

        outputs[0].register_hook(begin)
        for tensor in inputs:
            tensor.register_hook(end)

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()
