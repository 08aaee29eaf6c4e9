"""The forward and the backward pass of a step: a batch becomes gradients of its mean loss.

`Passes` computes as the settings say: precision, memory format, kernels, offloading, the compiler. `OwnGradients` is for one
process; parallel/ has the variants for several. If memory runs out, the batch is split and tried again: same samples, same
loss. If the compiler fails, the step is computed again without it, from where it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flatout.base.errors import OutOfMemory
from flatout.engine.attention import attention_kernel
from flatout.engine.compiling import Before, compiler, for_all_shapes, is_compilers, why_not
from flatout.engine.device import release_cached
from flatout.engine.offload import ActivationOffload
from flatout.engine.parallel.norms import scale_
from flatout.engine.precision import LossScale, autocast
from flatout.engine.records import NoPhases, Phases
from flatout.engine.settings import Settings
from flatout.machine.out_of_memory import is_out_of_memory

Batch = dict[str, Tensor]
Loss = tuple[Tensor, Tensor | float]  # and its weight: the number of samples or tokens
LossFunction = Callable[[nn.Module, Batch], Loss]
Compute = Callable[[Batch], Loss]


class Passes:
    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        parameters: list[nn.Parameter],
        settings: Settings,
        scale: LossScale | None,
        *,
        on_split: Callable[[int, int, str], None],
        on_eager: Callable[[str], None] | None,
        shapes_vary: bool,
    ) -> None:
        """`parameters`: those that are trained. For the other arguments see `Step`."""
        self.model, self.loss, self.parameters, self.scale = model, loss, parameters, scale
        self.device = torch.device(settings.device)
        self.micro_batch = settings.micro_batch
        self.compiled = settings.compile != "off"
        self.own_graphs = settings.compile == "reduce-overhead"  # each step overwrites the scalars of the last
        self._on_split, self._on_eager, self._shapes_vary = on_split, on_eager, shapes_vary
        self._precision, self._channels_last = settings.precision, settings.channels_last
        self._surroundings = None if _is_plain(settings) else _surroundings(model, settings, self.device)
        self._compiled_mean: Compute = self._mean_of
        self._compiled_sum: Compute = self._sum_of
        if self.compiled:
            compiled: Callable[[Compute], Compute] = compiler(settings.compile, shapes_vary)
            self._compiled_mean, self._compiled_sum = compiled(self._mean_of), compiled(self._sum_of)
        self._compiled_rows = 0  # rows of a batch that takes the compiled path; set by `warm`
        self._went_well: set[object] = set()  # shapes that were compiled successfully
        self._why_eager: str | None = None

    def mean(self, batch: Batch, rows: int) -> Loss:
        return self._forward(self._compiled_mean if self._compiles(rows) else self._mean_of, batch)

    def sum(self, batch: Batch, rows: int) -> Loss:
        return self._forward(self._compiled_sum if self._compiles(rows) else self._sum_of, batch)

    def sums(self, batch: Batch, rows: int, micro: int) -> Iterator[Loss]:
        """Loss sums of parts of a batch, one after the other."""
        for start in range(0, rows, micro):
            part = {name: column[start : start + micro] for name, column in batch.items()}
            yield self.sum(part, min(micro, rows - start))

    def backward(self, loss: Tensor) -> None:
        (loss if self.scale is None else loss * self.scale.scale).backward()

    def forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def mean_loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch without a step. It records gradients as a step does: nothing is compiled only for this."""
        rows = len(next(iter(batch.values())))
        micro = self.micro_batch or rows
        if rows <= micro:
            return self.mean(batch, rows)[0].detach()
        total: Tensor | float = 0.0
        weight: Tensor | float = 0.0
        for loss_sum, part_weight in self.sums(batch, rows, micro):
            total, weight = total + loss_sum.detach(), weight + part_weight
        assert isinstance(total, Tensor)
        return total / weight

    def _forward(self, compute: Compute, batch: Batch) -> Loss:
        if self._channels_last:
            batch = {k: v.contiguous(memory_format=torch.channels_last) if v.ndim == 4 else v for k, v in batch.items()}
        if self._shapes_vary and self.compiled:
            for_all_shapes(batch)
        if self._surroundings is None:
            return compute(batch)
        with autocast(self._precision, self.device), self._surroundings():
            return compute(batch)

    def _sum_of(self, batch: Batch) -> Loss:
        return self.loss(self.model, batch)

    def _mean_of(self, batch: Batch) -> Loss:
        loss_sum, weight = self.loss(self.model, batch)
        return loss_sum / weight, weight

    # ---- with the compiler, and without it ----

    def warm(self, rows: int) -> None:
        """Batches of this many rows take the compiled path; other sizes (the last batch of a budget) run eagerly."""
        self._compiled_rows = min(rows, self.micro_batch) if self.micro_batch else rows

    def before_compiling(self, batch: Batch) -> Before | None:
        """A copy of the state to go back to if the compiler fails, which can happen for new shapes only."""
        if not self.compiled or self._shapes(batch) in self._went_well:
            return None
        return Before(self.model, self.device)

    def went_well(self, batch: Batch) -> None:
        self._went_well.add(self._shapes(batch))

    def can_go_eager(self, error: Exception, before: Before | None) -> bool:
        """The first error for new shapes is taken for the compiler's: if it is the model's, it will occur eagerly too."""
        return self.compiled and self._on_eager is not None and (before is not None or is_compilers(error))

    def go_eager(self, why: str) -> None:
        """Stop compiling. `why` is reported once an eager step has succeeded; otherwise the model was the cause."""
        self.compiled, self.own_graphs, self._why_eager = False, False, why
        self._compiled_mean, self._compiled_sum = self._mean_of, self._sum_of

    def say_eager(self) -> None:
        if self._why_eager is not None and self._on_eager is not None:
            self._on_eager(self._why_eager)
        self._why_eager = None

    def _compiles(self, rows: int) -> bool:
        return self._shapes_vary or rows == self._compiled_rows

    def _shapes(self, batch: Batch) -> object:
        return (self.micro_batch, *(column.shape for column in batch.values()))

    # ---- out of memory ----

    def split_further(self, rows: int, reason: str) -> None:
        """Halve the number of rows computed at a time."""
        before = min(self.micro_batch or rows, rows)
        self.forget_gradients()
        release_cached(self.device)
        if before == 1:
            raise OutOfMemory(
                f"out of memory with one sample at a time ({reason}): use a smaller model or a lower precision, "
                "or --set activation_checkpointing=on"
            )
        self.micro_batch = (before + 1) // 2
        self._compiled_rows = min(self._compiled_rows, self.micro_batch)
        self._on_split(before, self.micro_batch, reason)


def _is_plain(settings: Settings) -> bool:
    """Whether a forward needs no context; entering one takes time."""
    return settings.precision in ("fp32", "tf32") and settings.attention == "auto" and not settings.activation_offload


def _surroundings(model: nn.Module, settings: Settings, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """The context of a forward, besides its precision."""
    kernel = attention_kernel(settings.attention)
    if not settings.activation_offload:
        return kernel
    offload = ActivationOffload(model, device)

    @contextmanager
    def both() -> Iterator[None]:
        with kernel(), offload():
            yield

    return both


# ---- from a batch to gradients ----


class Attempts(Protocol):
    """A step that is tried until it succeeds."""

    updating: bool  # weights change from here on: it can't be tried again

    def attempt(self, batch: Batch, rows: int) -> None: ...
    def go_eager(self, why: str) -> None: ...
    def sit_out(self) -> None: ...


class Gradients(Protocol):
    """Computes the gradients of a batch. Chosen when a step is made."""

    phases: Phases

    def __call__(self, batch: Batch, rows: int) -> Loss:
        """Computes gradients of the mean loss of the whole batch; returns that mean and its weight."""

    def take(self, step: Attempts, batch: Batch, whole: int | None) -> None:
        """Try the step until it succeeds. `whole`: rows of the batch of all processes."""


class OwnGradients:
    """For one process: the whole batch at once, or one part after the other."""

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
            # outside the except block: there the traceback would hold the failed step's tensors
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
        # the weight of the whole batch is known only now; if every row counts once, it is `rows`
        assert isinstance(total, Tensor)
        if isinstance(weight, Tensor) or weight != rows:
            exact = weight.to(total.dtype) if isinstance(weight, Tensor) else weight  # a count may be an integer
            scale_(self._passes.parameters, rows / exact)
        self.phases.mark("backward")
        return total / weight, weight


def _copied(scalar: Any) -> Any:
    return scalar.clone() if isinstance(scalar, Tensor) else scalar
