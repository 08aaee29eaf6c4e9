"""Gradients of the mean loss of a batch, by several processes that each have a share of its rows or tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from flatout.engine.compiling import Before, why_not
from flatout.engine.one_process import Exchange
from flatout.engine.parallel.norms import scale_
from flatout.engine.passes import Attempts, Batch, Loss, Passes
from flatout.engine.records import NoPhases, Phases
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.world.world import World


class SharedGradients:
    """Errors of one process are found before the first exchange, and all processes learn of them."""

    def __init__(self, passes: Passes, exchange: Exchange, world: World) -> None:
        self.phases: Phases = NoPhases()
        self._passes, self._exchange, self._world = passes, exchange, world
        self._rehearsed = not exchange.rehearses or world.token_size == 1

    def take(self, step: Attempts, batch: Batch, whole: int | None) -> None:
        rows = len(next(iter(batch.values()))) if whole is None else whole
        if not self._rehearsed:
            self._rehearse(step, batch, rows)
            self._rehearsed = True
        step.attempt(batch, rows)

    def __call__(self, batch: Batch, rows: int) -> Loss:
        """The gradient of the mean over all rows. If the weights depend on the data, it is scaled once they are known."""
        passes, exchange = self._passes, self._exchange
        passes.forget_gradients()
        totals = torch.zeros(2, dtype=torch.float64, device=passes.device)  # loss sum and weight
        parts = list(self._parts(batch, rows))
        averaged_over = self._world.token_size if exchange.averages else 1
        by_data = False
        for number, (part, part_rows, counts) in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last else exchange.held_back():
                loss_sum, weight = passes.sum(part, part_rows)
                by_data = isinstance(weight, Tensor)
                if counts:
                    totals[0] += loss_sum.detach()
                    totals[1] += weight
                a_row = 1.0 if isinstance(weight, Tensor) else weight * self._world.context_size / part_rows
                learned = loss_sum * (averaged_over / (rows * a_row) if counts else 0.0)
                if last:
                    extra, all_summed = exchange.send(totals)
                    if extra is not None:
                        learned = learned + (extra if passes.scale is None else extra / passes.scale.scale)
                    self.phases.mark("forward")
                    exchange.at("backward")
                passes.backward(learned)
        exchange.at("exchange")
        exchange.end(passes.parameters)
        totals = all_summed()
        exchange.at("optimizer")
        if by_data:
            scale_(passes.parameters, rows / totals[1])
        self.phases.mark("backward")
        return totals[0] / totals[1], totals[1]

    def _parts(self, batch: Batch, whole: int) -> Iterator[tuple[Batch, int, bool]]:
        """Parts of the batch, with their rows and whether they count. Every process has the same number of parts, because some
        engines exchange in each; a process without rows for a part uses a row that does not count."""
        low, high = self._world.share(whole)
        largest = self._world.largest_share(whole)
        micro = min(self._passes.micro_batch or largest, largest)
        for start in range(0, largest, micro):
            begin, end = (start, min(start + micro, high - low)) if start < high - low else (0, 1)
            yield {name: column[begin:end] for name, column in batch.items()}, end - begin, start < high - low

    def _rehearse(self, step: Attempts, batch: Batch, whole: int) -> None:
        """Forward and backward of a first part without exchange, until it succeeds on all processes; changes nothing.

        If processes exchange inside a forward, one that runs out of memory leaves the others waiting, and all must end.
        """
        passes, exchange, world = self._passes, self._exchange, self._world
        while True:
            before, failure, reason = Before(passes.model, passes.device), "", ""
            try:
                with exchange.held_back():
                    part, rows, _ = next(self._parts(batch, whole))
                    passes.backward(passes.sum(part, rows)[0])
            except Exception as error:
                out_of_memory = is_out_of_memory(error)
                hopeless = world.context_size > 1 if out_of_memory else not passes.can_go_eager(error, before)
                if hopeless:
                    raise
                failure = "memory" if out_of_memory else "compiler"
                reason = str(error).partition("\n")[0] if out_of_memory else why_not(error)
            unused = any(parameter.grad is None for parameter in passes.parameters)
            passes.forget_gradients()
            before.put_back()
            exchange.at("exchange")
            votes = world.gather([failure, reason, unused])
            told = {str(vote[0]): f"rank {rank}: {vote[1]}" for rank, vote in enumerate(votes) if vote[0]}
            if not told:
                break
            if "memory" in told:
                passes.split_further(world.largest_share(whole), told["memory"])
            else:
                step.go_eager(told["compiler"])
        passes.say_eager()
        if any(vote[2] for vote in votes):
            exchange.expect_unused()
