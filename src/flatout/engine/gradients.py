"""A batch becomes gradients of its mean loss, by one process, which exchanges nothing. How several do it is in parallel/.

Out of memory splits the batch and tries again: same samples, same loss. So does a failure of the compiler: the step is done
again without it, from where it began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flatout.engine.compiling import why_not
from flatout.engine.parallel.norms import clip_, scale_
from flatout.engine.passes import Batch, Loss, LossFunction, Passes
from flatout.engine.phases import NoPhases, Phases
from flatout.engine.records import Interval
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.world.world import World

Look = Callable[[nn.Module, Batch], Any]


class Attempts(Protocol):
    """A step, for whoever tries it until it goes well."""

    updating: bool  # from here on it can't be done again

    def attempt(self, batch: Batch, rows: int) -> None: ...
    def go_eager(self, why: str) -> None: ...
    def sit_out(self) -> None: ...


class Gradients(Protocol):
    """Of which one is chosen when a step is made."""

    phases: Phases

    def __call__(self, batch: Batch, rows: int) -> Loss:
        """The gradients are those of the mean over the whole batch; returns that mean, and its weight."""

    def take(self, step: Attempts, batch: Batch, whole: int | None) -> None:
        """Attempt the step until it is done. `whole`: rows of the batch of all processes, of which this may be a share."""


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


class OwnGradients:
    """By one process: of the whole batch at once, or of one part after the other."""

    def __init__(self, passes: Passes) -> None:
        self.phases: Phases = NoPhases()
        self._passes = passes

    def take(self, step: Attempts, batch: Batch, whole: int | None) -> None:
        passes, rows = self._passes, len(next(iter(batch.values())))
        while True:
            before = passes.before_compiling(batch)
            try:
                step.attempt(batch, rows)
                break
            except Exception as error:
                out_of_memory = is_out_of_memory(error)
                if not out_of_memory and (step.updating or not passes.can_go_eager(error, before)):
                    raise
                reason = str(error).partition("\n")[0] if out_of_memory else why_not(error)
            # outside the except block, where the traceback no longer holds the failed step's tensors
            if before is not None:
                before.put_back()
            if out_of_memory:
                passes.split_further(rows, reason)
            else:
                step.go_eager(reason)
        if before is not None:
            passes.went_well(batch)
        passes.say_eager()

    def __call__(self, batch: Batch, rows: int) -> Loss:
        passes = self._passes
        if passes.own_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        passes.forget_gradients()
        micro = passes.micro_batch or rows
        loss, weight = self._whole(batch, rows) if rows <= micro else self._in_parts(batch, rows, micro)
        return (_copied(loss), _copied(weight)) if passes.own_graphs else (loss, weight)

    def _whole(self, batch: Batch, rows: int) -> Loss:
        loss, weight = self._passes.mean(batch, rows)
        self.phases.mark("forward")
        self._passes.backward(loss)
        self.phases.mark("backward")
        return loss.detach(), weight

    def _in_parts(self, batch: Batch, rows: int, micro: int) -> Loss:
        total: Tensor | float = 0.0
        weight: Tensor | float = 0.0
        for loss_sum, part_weight in self._passes.sums(batch, rows, micro):
            self._passes.backward(loss_sum / rows)
            total = total + loss_sum.detach()
            weight = weight + part_weight
        # the weight of the whole batch is known only now; where a row counts once, nothing is left to do
        assert isinstance(total, Tensor)
        if isinstance(weight, Tensor) or weight != rows:
            exact = weight.to(total.dtype) if isinstance(weight, Tensor) else weight  # a count may be an integer
            scale_(self._passes.parameters, rows / exact)
        self.phases.mark("backward")
        return total / weight, weight


def _copied(scalar: Any) -> Any:
    return scalar.clone() if isinstance(scalar, Tensor) else scalar
