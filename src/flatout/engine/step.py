"""One step: batch in, device scalars out. Forward, loss, backward, clip, update; it never waits for the device.

The loss is the mean over the whole batch, weighted by samples or tokens, however the batch is split. A step whose loss (or
gradient norm) is not finite changes neither weights nor optimizer.

passes.py computes gradients from a batch (parallel/: on several processes), update.py applies them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from flatout.engine.ema import Average
from flatout.engine.offload import HostOptimizer
from flatout.engine.one_process import Exchange
from flatout.engine.passes import Batch, Gradients, LossFunction, OwnGradients, Passes
from flatout.engine.precision import LossScale
from flatout.engine.records import GraphRecords, Phases, Records
from flatout.engine.settings import Settings
from flatout.engine.update import Update, trained_by


class Step:
    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        optimizer: Optimizer | HostOptimizer,
        settings: Settings,
        *,
        clip: float | None = None,
        average: Average | None = None,
        on_split: Callable[[int, int, str], None] = lambda before, after, reason: None,
        on_eager: Callable[[str], None] | None = None,
        shapes_vary: bool = False,
        exchange: Exchange | None = None,
        gradients: Callable[[Passes], Gradients] = OwnGradients,
    ) -> None:
        """`shapes_vary`: batches come in many shapes, and one compilation serves them all.

        `exchange` connects several processes; `gradients` makes the part that computes gradients with it.

        `on_eager` gets the reason when a step could not be compiled and ran eagerly; without it the error is raised.
        """
        self.model = model
        self.device = torch.device(settings.device)
        self.exchange = exchange or Exchange(model, loss)
        self.scale = LossScale(self.device) if settings.precision == "fp16" else None
        trained = {id(parameter) for parameter in trained_by(optimizer)}
        parameters = [p for p in model.parameters() if id(p) in trained]  # in the model's order, as a norm is summed
        self.passes = Passes(
            model, self.exchange.loss, parameters, settings, self.scale,
            on_split=on_split, on_eager=on_eager, shapes_vary=shapes_vary,
        )  # fmt: skip
        self.gradients = gradients(self.passes)
        clipped = None if clip is None else self.exchange.clips(parameters, clip)
        self.update = Update(optimizer, parameters, settings, self.scale, clip=clipped, average=average)
        self.records: Records | GraphRecords = Records()
        self.updating = False
        self._norms = clip is not None

    def __call__(self, batch: Batch, whole: int | None = None) -> None:
        """One update, tried again if memory runs out or the compiler fails. `whole`: rows of the batch of all processes."""
        self.gradients.take(self, batch, whole)

    def attempt(self, batch: Batch, rows: int) -> None:
        self.updating = False
        loss, weight = self.gradients(batch, rows)
        self.updating = True  # weights change from here on: it can't be tried again
        norm = self.update(loss)
        self.records.add(loss, weight, norm)

    def sit_out(self) -> None:
        """A step for which this process has no rows: it is counted, and nothing changes."""
        nothing = torch.zeros((), device=self.device)
        self.records.add(nothing, 0.0, nothing if self._norms else None)

    def go_eager(self, why: str) -> None:
        """Stop compiling. `why` is reported once an eager step has succeeded."""
        self.passes.go_eager(why)
        self.update.go_eager()

    def time_phases(self, phases: Phases) -> None:
        """Tell `phases` when each phase of a step has been issued."""
        self.gradients.phases = self.update.phases = phases
