"""The places where several processes meet, for one process: nothing is exchanged and nothing is waited for.

The loop and the step call these at the same places for any number of processes; parallel/ overrides them for several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from flatout.engine.parallel.norms import clip_
from flatout.engine.passes import Batch, Loss, LossFunction
from flatout.engine.progress import Progress
from flatout.engine.records import Interval
from flatout.engine.signals import StopRequest
from flatout.world.watch import NoWatch
from flatout.world.world import World

if TYPE_CHECKING:
    from flatout.world.watch.watch import RankWatch

Look = Callable[[nn.Module, Batch], Any]


class Exchange:
    """How gradients and weights are exchanged; this one exchanges nothing."""

    averages = True  # gradients over processes; else sums them
    has_output = True  # `look` returns the model's output here
    rehearses = False  # a backward inside `held_back` exchanges nothing, so it can be tried first

    def __init__(self, model: nn.Module, loss: LossFunction, world: World | None = None) -> None:
        self._model, self._loss, self._world = model, loss, world or World()
        self.at: Callable[[str], None] = lambda phase: None  # gets the phase that a step is in

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        return self._loss(model, batch)

    def look(self, compute: Look, batch: Batch) -> Any:
        """The result of `compute` for a batch, without training on it."""
        return compute(self._model, batch)

    def held_back(self) -> AbstractContextManager[Any]:
        """Inside, a backward does not exchange gradients. An exchange may ignore this."""
        return nullcontext()

    def expect_unused(self) -> None:
        """Some parameters get no gradient in some batches."""

    def train_others(self) -> None:
        """From here on other parameters of the model train. Every process calls it at the same step."""

    def send(self, totals: Tensor) -> tuple[Tensor | None, Callable[[], Tensor]]:
        """Start summing `totals` over processes during the backward.

        Returns a term to add to the loss, if any, and a function that gives the sums after the backward.
        """
        wait = self._world.begin_sum(totals)

        def summed() -> Tensor:
            wait()
            return totals

        return None, summed

    def end(self, parameters: Sequence[Tensor]) -> None:
        """After the last backward of a step."""

    def clips(self, parameters: list[nn.Parameter], limit: float) -> Callable[[], Tensor]:
        """A function that scales all gradients so that their norm is at most `limit`, and returns the norm."""
        if any(hasattr(parameter, "placements") for parameter in parameters):  # over a mesh
            return partial(clip_, parameters, limit)
        return partial(nn.utils.clip_grad_norm_, parameters, limit, foreach=True)

    def after_step(self, rows: int) -> None:
        """`rows`: of the batch of all processes."""

    def finish(self) -> None:
        """Call at the end of a run, before the weights are used."""

    def in_place(self) -> AbstractContextManager[Any]:
        """Inside, the model has the weights to evaluate."""
        return nullcontext()

    def average_statistics(self) -> None:
        """Average the running statistics of batch norms, before an evaluation or a checkpoint."""
        if self._world.token_size > 1:
            from flatout.engine.parallel.statistics import average_statistics  # here: one process starts sooner without it

            average_statistics(self._model, self._world)

    def of_all(self, interval: Interval) -> Interval:
        """Losses, weights and norms over all processes, from those of this one."""
        return interval


class Together:
    """Clock, stop requests and save decisions of one process."""

    def __init__(self, world: World, stop: StopRequest, watch: RankWatch | NoWatch | None = None) -> None:
        self.world = world
        self.stop = stop
        self.watch = watch or NoWatch()

    def clock(self) -> float:
        return time.monotonic()

    def meet(self, wants_save: Callable[[Progress], bool], progress: Progress) -> None:
        """Called at log points. Several processes agree here on the time, on stopping and on saving."""

    def hears_stop(self) -> bool:
        """Whether any process was asked to stop, as far as this one knows. Cheap, without communication."""
        return bool(self.stop)

    def save_due(self, wants_save: Callable[[Progress], bool], progress: Progress) -> bool:
        return wants_save(progress)
