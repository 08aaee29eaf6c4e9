"""What the engine's tests share: small data, a model whose forward a test can disturb, quick runs, a counter of host syncs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import flatout as fo
from flatout.data.order.keyed import Order
from flatout.engine.device import inside_sync_point
from flatout.engine.saver import Saver
from flatout.machine.facts import read_facts
from flatout.plan import make as planned
from flatout.plan import situation
from flatout.plan.plan import Prediction
from flatout.runs import record
from flatout.runs.verbs import Run
from flatout.store.tensors import read_tensors

Disturb = Callable[[nn.Module, Tensor], Tensor]
_disturb: dict[int, Disturb] = {}  # no part of the model: a disturbed run and a calm one have the same identity


class Net(nn.Module):
    """A matrix, a norm, biases; dropout where asked for."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.norm = nn.LayerNorm(12)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        for disturb in _disturb.values():
            x = disturb(self, x)
        return self.head(self.dropout(torch.relu(self.norm(self.body(x)))))


def net() -> nn.Module:
    return Net()


def dropping_net() -> nn.Module:
    return Net(dropout=0.3)


@contextmanager
def disturbed(disturb: Disturb) -> Iterator[None]:
    """`disturb(model, x)` sees each forward of a Net and may raise, count, or return another x."""
    _disturb[id(disturb)] = disturb
    try:
        yield
    finally:
        del _disturb[id(disturb)]


def in_training(disturb: Callable[[int, Tensor], Tensor | None]) -> Disturb:
    """Called with the number of the training forward (0, 1, ...) and x; evaluation and checks pass it by."""
    calls = iter(range(1 << 30))
    return lambda model, x: x if not model.training else (y if (y := disturb(next(calls), x)) is not None else x)


def blobs(rows: int = 120, holdout: float = 0.2, noise: float = 1.0) -> Any:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(rows) % 3
    centres = 2 * torch.randn(3, 6, generator=generator)
    return fo.data.arrays(centres[y] + noise * torch.randn(rows, 6, generator=generator), y, holdout=holdout)


def recipe(**given: Any) -> fo.Recipe:
    settings = {"device": "cpu", "log_every": 4, **given.pop("settings", {})}
    asked: dict[str, Any] = {"model": net, "batch": 16, "lr": 0.01, "budget": "12 steps", "name": "small", **given}
    return fo.Recipe(**{"data": blobs(), **asked}, settings=settings)


_facts = functools.cache(read_facts)


@contextmanager
def quick() -> Iterator[None]:
    """No probe, no prediction, one thread (two that wait for each other are slower), and each save that is due is made."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with (
            patch.object(planned, "ceilings_of", lambda device, cache, job: None),
            patch.object(record, "read_facts", _facts),
            patch.object(Saver, "busy", False),
            patch.object(situation, "predict", lambda job, settings, ceilings: Prediction(reason="not asked for")),
        ):
            yield
    finally:
        torch.set_num_threads(threads)


def train(runs: Path, asked: fo.Recipe | None = None, *, observers: Any = (), fresh: bool = False, **given: Any) -> Run:
    with quick():
        return fo.run(asked or recipe(**given), runs=runs, observers=observers, fresh=fresh, cache=None)


def weights(run: Run) -> dict[str, Tensor]:
    return read_tensors(run.path / "model.safetensors")


def kinds(run: Run, kind: str) -> list[Any]:
    return [event for event in run.events() if event["kind"] == kind]


def only_run(runs: Path) -> Run:
    (path,) = [entry for entry in runs.iterdir() if entry.is_dir()]
    return fo.load(path)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class SyncCounter(TorchDispatchMode):
    """Counts reads of a scalar by the host outside of the engine's sync points, from the run's start to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.listening = False
        self.counted = 0
        self.allowed = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.listening and function is torch.ops.aten._local_scalar_dense.default:
            if inside_sync_point():
                self.allowed += 1
            else:
                self.counted += 1
        return function(*args, **(kwargs or {}))

    def observe(self, event: Any) -> None:
        if event["kind"] in ("started", "finished"):
            self.listening = event["kind"] == "started"


@contextmanager
def counting_syncs() -> Iterator[SyncCounter]:
    """The order is made on the host from host tensors, tens of thousands of samples ahead: what it reads is not a wait."""
    counter = SyncCounter()
    lay_out = Order._lay_out

    def unheard(*given: Any) -> Any:
        listening, counter.listening = counter.listening, False
        try:
            return lay_out(*given)
        finally:
            counter.listening = listening

    with patch.object(Order, "_lay_out", unheard), counter:
        yield counter
