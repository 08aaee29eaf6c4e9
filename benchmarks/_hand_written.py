"""The other arms of gpu_small: loops as they are written by hand for one model, with nothing around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from flatout.measure.clock import synchronize

WARMUP_STEPS = 3
LossOf = Callable[[nn.Module, Tensor, Tensor], Tensor]


@contextmanager
def fast_products() -> Iterator[None]:
    """tf32 for float32 products and cuDNN's own choice of algorithms, for as long as a hand-written arm runs."""
    before, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.benchmark = benchmark


def autocast_to(precision: str, device: torch.device) -> torch.autocast | nullcontext[None]:
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def samples_per_s(step: Callable[[], object], steps: int, batch: int, device: torch.device) -> float:
    """The clock runs from an idle device to an idle device, over all the steps at once."""
    with fast_products():
        for _ in range(WARMUP_STEPS):
            step()
        synchronize(device)
        began_s = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize(device)
        return steps * batch / (time.perf_counter() - began_s)


class EagerStep:
    """What most people run: eager, default AdamW, the data on the device and shuffled there."""

    def __init__(self, model: nn.Module, loss_of: LossOf, x: Tensor, y: Tensor, batch: int, lr: float) -> None:
        self._model, self._loss_of, self._x, self._y, self._batch = model, loss_of, x, y, batch
        self._optimizer = AdamW(model.parameters(), lr=lr)
        self._order, self._place = torch.randperm(len(x), device=x.device), 0

    def __call__(self) -> None:
        if self._place + self._batch > len(self._x):
            self._order, self._place = torch.randperm(len(self._x), device=self._x.device), 0
        rows = self._order[self._place : self._place + self._batch]
        self._place += self._batch
        self._optimizer.zero_grad()
        self._loss_of(self._model, self._x[rows], self._y[rows]).backward()
        self._optimizer.step()


class GraphStep:
    """The ceiling: gather, compiled forward and backward, and update as one CUDA graph. On a CPU, the same without a graph."""

    def __init__(self, model: nn.Module, loss_of: LossOf, x: Tensor, y: Tensor, batch: int, lr: float, precision: str) -> None:
        self._device = x.device
        on_gpu = self._device.type == "cuda"
        self._model, self._x, self._y, self._precision = model, x, y, precision
        self._loss_of = torch.compile(loss_of, dynamic=False) if on_gpu else loss_of
        self._optimizer = AdamW(model.parameters(), lr=lr, fused=True, capturable=on_gpu)
        whole = len(x) // batch * batch
        self._order = torch.randperm(len(x), device=self._device)[:whole]
        self._places = torch.arange(batch, device=self._device)
        self._replay = self._capture() if on_gpu else self._step

    def __call__(self) -> None:
        self._replay()

    def _step(self) -> None:
        rows = self._order.index_select(0, self._places)
        self._places.add_(len(self._places)).remainder_(len(self._order))
        self._optimizer.zero_grad(set_to_none=True)
        with autocast_to(self._precision, self._device):
            loss = self._loss_of(self._model, self._x.index_select(0, rows), self._y.index_select(0, rows))
        loss.backward()
        self._optimizer.step()

    def _capture(self) -> Callable[[], None]:
        with fast_products():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARMUP_STEPS):
                    self._step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
        return graph.replay
