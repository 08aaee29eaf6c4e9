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
    """Of one process by itself: nothing is exchanged."""

    averages = True  # over processes; else it sums
    has_output = True  # of the model: `look` gives it
    rehearses = False  # a backward that is held back is no exchange: it can be tried out beforehand

    def __init__(self, model: nn.Module, loss: LossFunction, world: World | None = None) -> None:
        self._model, self._loss, self._world = model, loss, world or World()
        self.at: Callable[[str], None] = lambda phase: None  # told where a step is

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        return self._loss(model, batch)

    def look(self, compute: Look, batch: Batch) -> Any:
        """What comes of a batch, where nothing is learned."""
        return compute(self._model, batch)

    def held_back(self) -> AbstractContextManager[Any]:
        """Within it a backward adds to this process's gradients alone. It may do more than asked, never less."""
        return nullcontext()

    def expect_unused(self) -> None:
        """Some parameters take no part in some batches."""

    def send(self, totals: Tensor) -> tuple[Tensor | None, Callable[[], Tensor]]:
        """Sums over processes beside the backward: what to differentiate besides, and who has the sums after it."""
        wait = self._world.begin_sum(totals)

        def summed() -> Tensor:
            wait()
            return totals

        return None, summed

    def end(self, parameters: Sequence[Tensor]) -> None:
        """After the last backward of a step."""

    def clips(self, parameters: list[nn.Parameter], limit: float) -> Callable[[], Tensor]:
        """Makes what scales their gradients by one factor, so that the norm of all is `limit` at most, and returns the norm."""
        if any(hasattr(parameter, "placements") for parameter in parameters):  # over a mesh
            return partial(clip_, parameters, limit)
        return partial(nn.utils.clip_grad_norm_, parameters, limit, foreach=True)

    def after_step(self, rows: int) -> None:
        """`rows`: of the batch of all processes."""

    def finish(self) -> None:
        """At the end of a run, before anybody looks at the weights."""

    def in_place(self) -> AbstractContextManager[Any]:
        """The model has the weights that are evaluated inside this context."""
        return nullcontext()

    def average_statistics(self) -> None:
        """Those of batch norms, before anybody looks at them: an evaluation, a checkpoint."""
        if self._world.token_size > 1:
            from flatout.engine.parallel.statistics import average_statistics  # one process starts sooner without it

            average_statistics(self._model, self._world)

    def of_all(self, interval: Interval) -> Interval:
        """What the steps did on all processes, of what they did here."""
        return interval


class Together:
    """Of one process: everything is as it is now."""

    def __init__(self, world: World, stop: StopRequest, watch: RankWatch | NoWatch | None = None) -> None:
        self.world = world
        self.stop = stop
        self.watch = watch or NoWatch()

    def clock(self) -> float:
        return time.monotonic()

    def meet(self, wants_save: Callable[[Progress], bool], progress: Progress) -> None:
        """At a log point."""

    def hears_stop(self) -> bool:
        """Whether any process was asked to stop, as far as is known here: nothing is agreed on yet. Cheap, and no exchange."""
        return bool(self.stop)

    def save_due(self, wants_save: Callable[[Progress], bool], progress: Progress) -> bool:
        return wants_save(progress)
