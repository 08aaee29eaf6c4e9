"""One step: batch in, device scalars out. Forward, loss, backward, clip, update, and no waiting for the device.

The loss is the mean over the whole batch weighted by samples or tokens, however the batch is split. A step whose loss (or
gradient norm) is not finite leaves weights and optimizer as they were.

passes.py has the forward and the backward, gradients.py how a batch becomes gradients (parallel/: on several processes),
update.py what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from flatout.engine.ema import Average
from flatout.engine.gradients import Exchange, Gradients, OwnGradients
from flatout.engine.offload import HostOptimizer
from flatout.engine.passes import Batch, LossFunction, Passes
from flatout.engine.phases import Phases
from flatout.engine.precision import LossScale
from flatout.engine.records import GraphRecords, Records
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
        """`shapes_vary`: batches come in many shapes, and what is compiled is to serve them all.

        `exchange` is the engine between several processes, and `gradients` makes what a batch is computed by with it.

        `on_eager` is told why, where a step could not be compiled and was done eagerly; without it the error is raised.
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
        """One update, attempted again where memory or the compiler fails. `whole`: rows of the batch of all processes."""
        self.gradients.take(self, batch, whole)

    def attempt(self, batch: Batch, rows: int) -> None:
        self.updating = False
        loss, weight = self.gradients(batch, rows)
        self.updating = True  # from here on it can't be done again
        norm = self.update(loss)
        self.records.add(loss, weight, norm)

    def sit_out(self) -> None:
        """A step that this process has no row for: it counts, and nothing changes."""
        nothing = torch.zeros((), device=self.device)
        self.records.add(nothing, 0.0, nothing if self._norms else None)

    def go_eager(self, why: str) -> None:
        """Nothing is compiled any more. `why` is said once a step has gone well that way."""
        self.passes.go_eager(why)
        self.update.go_eager()

    def time_phases(self, phases: Phases) -> None:
        """Have `phases` told when a phase of a step has been issued."""
        self.gradients.phases = self.update.phases = phases
