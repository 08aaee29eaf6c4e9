"""One step: batch in, device scalars out. Forward, loss, backward, clip, update, and no waiting for the device.

The loss is the mean over the whole batch weighted by samples or tokens, however the batch is split. A step whose loss (or
gradient norm) is not finite leaves weights and optimizer as they were: the fused kernel reads that flag on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.base.errors import OutOfMemory, UsageError
from flatout.engine.attention import attention_kernel
from flatout.engine.compiling import Before, compiler, for_all_shapes, is_compilers, why_not
from flatout.engine.ema import Average
from flatout.engine.fused import FusedUpdate
from flatout.engine.memory import release_cached
from flatout.engine.offload import ActivationOffload, HostOptimizer, guarded_update, trained_by
from flatout.engine.parallel.exchange import Exchange, Replicas
from flatout.engine.parallel.norms import clip_, scale_
from flatout.engine.parallel.piped import Piped
from flatout.engine.phases import NoPhases, Phases
from flatout.engine.precision import LossScale, autocast
from flatout.engine.records import GraphRecords, Records
from flatout.engine.settings import Settings
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.machine.world import World

Batch = dict[str, Tensor]
Loss = tuple[Tensor, Tensor | float]  # with its weight: how many samples or tokens it speaks for
LossFunction = Callable[[nn.Module, Batch], Loss]
Compute = Callable[[Batch], Loss]


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
        world: World | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """`shapes_vary`: batches come in many shapes, and what is compiled is to serve them all.

        In a `world` of several processes a batch is this one's share, `exchange` the engine between them.

        `on_eager` is told why, where a step could not be compiled and was done eagerly; without it the error is raised.
        """
        self.model = model
        self.optimizer: Any = optimizer  # torch's own interface; a HostOptimizer is stepped as a guarded update alone
        self.device = torch.device(settings.device)
        self.micro_batch = settings.micro_batch
        self.scale = LossScale(self.device) if settings.precision == "fp16" else None
        self.records: Records | GraphRecords = Records()
        self.rate = 0.0
        self.phases: Phases = NoPhases()
        self.at: Callable[[str], None] = lambda phase: None  # told where a step of several processes is
        self._precision = settings.precision
        self._channels_last = settings.channels_last
        self._clip = clip
        self._average = average
        self._on_split = on_split
        self._on_eager = on_eager
        self._beside = _beside_autocast(model, settings, self.device)
        self._plain = (
            settings.precision in ("fp32", "tf32") and settings.attention == "auto" and not settings.activation_offload
        )
        trained = {id(parameter) for parameter in trained_by(optimizer)}
        self._parameters = [p for p in model.parameters() if id(p) in trained]  # in the model's order, as a norm is summed
        self._spread = any(hasattr(parameter, "placements") for parameter in self._parameters)  # over a mesh
        self._world = world or World()
        self.exchange = exchange or Exchange(model, loss)
        self._loss = self.exchange.loss
        self._rehearsed = self._world.token_size == 1
        self._compiled_rows = 0  # until `warm` says how many rows a batch has, nothing takes the compiled path
        self._shapes_vary = shapes_vary
        self._own_graphs = settings.compile == "reduce-overhead"
        self._went_well: set[object] = set()  # shapes that were compiled
        self._why_eager: str | None = None
        self._updating = False  # from here on a step can't be done again
        compiled: Callable[[Compute], Compute] = compiler(settings.compile, shapes_vary)
        self._compiled_mean, self._compiled_sum = compiled(self._mean_of), compiled(self._sum_of)
        # groups of one factor share the tensor that a graph reads its rate from
        self.device_rates = {g["factor"]: g["lr"] for g in optimizer.param_groups if isinstance(g["lr"], Tensor)}
        self.compiled = settings.compile != "off"
        in_graph = self.compiled and settings.graph
        self._guarded = guarded_update(optimizer, self.device, compiled=in_graph)
        if self.scale is not None and not isinstance(self._guarded, FusedUpdate):
            raise UsageError(
                "precision=fp16 needs a fused AdamW, Adam or SGD, which can skip a step whose gradients overflow: "
                "--set fused_optimizer=on and --off optimizer_offload, or --set precision=bf16"
            )
        self._skip = self._guarded.skip if isinstance(self._guarded, FusedUpdate) else torch.zeros((), device=self.device)

    def set_rate(self, lr: float) -> None:
        if lr == self.rate:
            return
        self.rate = lr
        for group in self.optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = lr * group.get("factor", 1.0)
        for factor, rate in self.device_rates.items():
            rate.fill_(lr * factor)

    def __call__(self, batch: Batch, whole: int | None = None) -> None:
        """One update. Out of memory splits the batch and tries again: same samples, same loss.

        So does a failure of the compiler: the step is done again without it, from where it began. `whole`: rows of the batch
        of all processes, of which this is a share.
        """
        if whole is not None and not self.exchange.takes_part(whole):
            nothing = torch.zeros((), device=self.device)
            self.records.add(nothing, 0.0, None if self._clip is None else nothing)
            return
        rows = len(next(iter(batch.values())))
        if self._world.token_size > 1 or isinstance(self.exchange, Piped):
            self._together(batch, rows if whole is None else whole)
            return
        while True:
            before = self._before_compiling(batch)
            try:
                self.attempt(batch, rows)
                break
            except Exception as error:
                out_of_memory = is_out_of_memory(error)
                if not out_of_memory and not self._can_go_eager(error, before):
                    raise
                reason = str(error).partition("\n")[0] if out_of_memory else why_not(error)
            # outside the except block, where the traceback no longer holds the failed step's tensors
            if before is not None:
                before.put_back()
            if out_of_memory:
                self._split_further(rows, reason)
            else:
                self.go_eager(reason)
        if before is not None:
            self._went_well.add(self._shapes(batch))
        self.say_eager()

    def attempt(self, batch: Batch, rows: int) -> None:
        if self._own_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        self._forget_gradients()
        self._updating = False
        micro = self.micro_batch or rows
        loss, weight = self._whole(batch, rows) if rows <= micro else self._in_parts(batch, rows, micro)
        self._updating = True
        norm = self._update(loss)
        self.records.add(self._to_keep(loss), self._to_keep(weight), norm)

    def _together(self, batch: Batch, whole: int) -> None:
        """A step of several processes. What goes wrong on one is found before the first exchange, and known to all."""
        if not self._rehearsed:
            self._rehearse(batch, whole)
            self._rehearsed = True
        self._forget_gradients()
        self._updating = False
        loss, weight = self._piped(batch, whole) if isinstance(self.exchange, Piped) else self._shared(batch, whole)
        self._updating = True
        self.records.add(loss, weight, self._update(loss))

    def _rehearse(self, batch: Batch, whole: int) -> None:
        """Forward and backward of a first part, kept from the others, until it goes well on all of them; it leaves no trace.

        Where processes meet within a forward, one that has no memory for it leaves the others waiting: nobody can go on then.
        """
        if not isinstance(self.exchange, Replicas):
            return  # its forward is an exchange
        while True:
            before, failure, reason = Before(self.model, self.device), "", ""
            try:
                with self.exchange.held_back():
                    compute, part, _ = next(self._share_parts(batch, whole))
                    self._backward(self._forward(compute, part)[0])
            except Exception as error:
                out_of_memory = is_out_of_memory(error)
                hopeless = self._world.context_size > 1 if out_of_memory else not self._can_go_eager(error, before)
                if hopeless:
                    raise
                failure = "memory" if out_of_memory else "compiler"
                reason = str(error).partition("\n")[0] if out_of_memory else why_not(error)
            unused = any(parameter.grad is None for parameter in self._parameters)
            self._forget_gradients()
            before.put_back()
            self.at("exchange")
            votes = self._world.gather([failure, reason, unused])
            told = {str(vote[0]): f"rank {rank}: {vote[1]}" for rank, vote in enumerate(votes) if vote[0]}
            if not told:
                break
            if "memory" in told:
                self._split_further(self._world.largest_share(whole), told["memory"])
            else:
                self.go_eager(told["compiler"])
        self.say_eager()
        if any(vote[2] for vote in votes):
            self.exchange.expect_unused()

    def _shared(self, batch: Batch, whole: int) -> Loss:
        """The gradient of the mean over the rows of all; where only data knows how many count, scaled once that is known."""
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)  # the loss summed, and of how many
        parts = list(self._share_parts(batch, whole))
        averaged_over = self._world.token_size if self.exchange.averages else 1
        by_data = False
        for number, (compute, part, counts) in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last else self.exchange.held_back():
                loss_sum, weight = self._forward(compute, part)
                by_data = isinstance(weight, Tensor)
                if counts:
                    totals[0] += loss_sum.detach()
                    totals[1] += weight
                rows = len(next(iter(part.values())))
                a_row = 1.0 if isinstance(weight, Tensor) else weight * self._world.context_size / rows
                learned = loss_sum * (averaged_over / (whole * a_row) if counts else 0.0)
                if last:
                    beside, all_summed = self.exchange.send(totals)
                    if beside is not None:
                        learned = learned + (beside if self.scale is None else beside / self.scale.scale)
                    self.phases.mark("forward")
                    self.at("backward")
                self._backward(learned)
        self.at("exchange")
        self.exchange.end(self._parameters)
        totals = all_summed()
        self.at("optimizer")
        if by_data:
            scale_(self._parameters, whole / totals[1])
        self.phases.mark("backward")
        return totals[0] / totals[1], totals[1]

    def _piped(self, batch: Batch, whole: int) -> Loss:
        assert isinstance(self.exchange, Piped)
        low, high = self._world.share(whole)
        own = {name: column[: high - low] for name, column in batch.items()}
        totals = torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in self.exchange.learn(own, whole)])
        self._world.sum_(totals)
        scale_(self._parameters, whole / totals[1])
        self.phases.mark("backward")
        return totals[0] / totals[1], totals[1]

    def _share_parts(self, batch: Batch, whole: int) -> Iterator[tuple[Compute, Batch, bool]]:
        """As many on every process, since some engines meet in each; who has no row for one takes one that does not count."""
        low, high = self._world.share(whole)
        largest = self._world.largest_share(whole)
        micro = min(self.micro_batch or largest, largest)
        for start in range(0, largest, micro):
            begin, end = (start, min(start + micro, high - low)) if start < high - low else (0, 1)
            part = {name: column[begin:end] for name, column in batch.items()}
            yield self._compiled_sum if self._compiles(end - begin) else self._sum_of, part, start < high - low

    def mean_loss(self, batch: Batch) -> Tensor:
        """Of a batch, without a step; computed as a step does, with gradients, so that nothing is compiled for this alone."""
        rows = len(next(iter(batch.values())))
        micro = self.micro_batch or rows
        if rows <= micro:
            return self._forward(self._compiled_mean if self._compiles(rows) else self._mean_of, batch)[0].detach()
        total: Tensor | float = 0.0
        weight: Tensor | float = 0.0
        for compute, part in self._parts(batch, rows, micro):
            loss_sum, part_weight = self._forward(compute, part)
            total, weight = total + loss_sum.detach(), weight + part_weight
        assert isinstance(total, Tensor)
        return total / weight

    def go_eager(self, why: str) -> None:
        """Nothing is compiled any more. `why` is said once a step has gone well that way: else the model was to blame."""
        self.compiled, self._own_graphs, self._why_eager = False, False, why
        self._compiled_mean, self._compiled_sum = self._mean_of, self._sum_of
        self._guarded = guarded_update(self.optimizer, self.device)
        if isinstance(self._guarded, FusedUpdate):
            self._skip = self._guarded.skip

    def say_eager(self) -> None:
        if self._why_eager is not None and self._on_eager is not None:
            self._on_eager(self._why_eager)
        self._why_eager = None

    def state_loaded(self) -> None:
        """Call after the optimizer's state was loaded."""
        if self._guarded is not None:
            self._guarded.attach()

    def warm(self, rows: int) -> None:
        """Batches of this many rows take the compiled path; any other size (the last of a budget) runs eagerly."""
        self._compiled_rows = min(rows, self.micro_batch) if self.micro_batch else rows

    def _compiles(self, rows: int) -> bool:
        return self._shapes_vary or rows == self._compiled_rows

    def _shapes(self, batch: Batch) -> object:
        return (self.micro_batch, *(column.shape for column in batch.values()))

    def _before_compiling(self, batch: Batch) -> Before | None:
        """To go back to if the compiler fails. It may wherever it meets shapes for the first time."""
        if not self.compiled or self._shapes(batch) in self._went_well:
            return None
        return Before(self.model, self.device)

    def _can_go_eager(self, error: Exception, before: Before | None) -> bool:
        """What goes wrong the first time is taken for the compiler's doing: if it is not, it goes wrong eagerly too."""
        if not self.compiled or self._on_eager is None or self._updating:
            return False
        return before is not None or is_compilers(error)

    def _to_keep(self, scalar: Any) -> Any:
        """The compiler's own graphs write the next step's over it."""
        return scalar.clone() if self._own_graphs and isinstance(scalar, Tensor) else scalar

    def _whole(self, batch: Batch, rows: int) -> Loss:
        mean = self._compiled_mean if self._compiles(rows) else self._mean_of
        loss, weight = self._forward(mean, batch)
        self.phases.mark("forward")
        self._backward(loss)
        self.phases.mark("backward")
        return loss.detach(), weight

    def _in_parts(self, batch: Batch, rows: int, micro: int) -> Loss:
        total: Tensor | float = 0.0
        weight: Tensor | float = 0.0
        for compute, part in self._parts(batch, rows, micro):
            loss_sum, part_weight = self._forward(compute, part)
            self._backward(loss_sum / rows)
            total = total + loss_sum.detach()
            weight = weight + part_weight
        # the weight of the whole batch is known only now; where a row counts once, nothing is left to do
        assert isinstance(total, Tensor)
        if isinstance(weight, Tensor) or weight != rows:
            exact = weight.to(total.dtype) if isinstance(weight, Tensor) else weight  # a count may be an integer
            scale_(self._parameters, rows / exact)
        self.phases.mark("backward")
        return total / weight, weight

    def _parts(self, batch: Batch, rows: int, micro: int) -> Iterator[tuple[Compute, Batch]]:
        for start in range(0, rows, micro):
            part = {name: column[start : start + micro] for name, column in batch.items()}
            yield self._compiled_sum if self._compiles(min(micro, rows - start)) else self._sum_of, part

    def _forward(self, compute: Compute, batch: Batch) -> Loss:
        if self._channels_last:
            batch = {k: v.contiguous(memory_format=torch.channels_last) if v.ndim == 4 else v for k, v in batch.items()}
        if self._shapes_vary and self.compiled:
            for_all_shapes(batch)
        if self._plain:
            return compute(batch)
        with autocast(self._precision, self.device), self._beside():
            return compute(batch)

    def _sum_of(self, batch: Batch) -> Loss:
        return self._loss(self.model, batch)

    def _mean_of(self, batch: Batch) -> Loss:
        loss_sum, weight = self._loss(self.model, batch)
        return loss_sum / weight, weight

    def _backward(self, loss: Tensor) -> None:
        (loss if self.scale is None else loss * self.scale.scale).backward()

    def _update(self, loss: Tensor) -> Tensor | None:
        norm = None
        if self.scale is not None:
            self._skip.zero_()
            self.scale.unscale(self._gradients(), self._skip)
        if self._clip is not None:
            if isinstance(self.exchange, Piped):
                elsewhere = self.exchange.pipeline.counted_elsewhere
                norm = clip_(self._parameters, self._clip, pipeline=self.exchange.group, skip=elsewhere)
            elif self._spread:
                norm = clip_(self._parameters, self._clip)
            else:
                norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._clip, foreach=True)
        if self._guarded is not None:
            self._guarded(None if self.scale is not None else loss if norm is None else norm)
        else:
            self.optimizer.step()
        if self.scale is not None:
            self.scale.update(self._skip)
        if self._average is not None:
            self._average.update()
        self.phases.mark("optimizer")
        return norm

    def _forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def _split_further(self, rows: int, reason: str) -> None:
        before = min(self.micro_batch or rows, rows)
        self._forget_gradients()
        release_cached(self.device)
        if before == 1:
            raise OutOfMemory(
                f"out of memory with a single sample at a time ({reason}): use a smaller model or precision, "
                "or --set activation_checkpointing=on"
            )
        self.micro_batch = (before + 1) // 2
        self._compiled_rows = min(self._compiled_rows, self.micro_batch)
        self._on_split(before, self.micro_batch, reason)


def _beside_autocast(model: nn.Module, settings: Settings, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Makes what a forward runs in, beside its precision."""
    kernel = attention_kernel(settings.attention)
    if not settings.activation_offload:
        return kernel
    offload = ActivationOffload(model, device)

    @contextmanager
    def both() -> Iterator[None]:
        with kernel(), offload():
            yield

    return both
