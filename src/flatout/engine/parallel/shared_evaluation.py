"""Evaluation by several processes: each evaluates its share of the rows, and the results are combined.

The sums that metrics are computed from are gathered, and every process adds them in the same order: float64 sums, counts, and
what a metric needs of each row. So all processes get the same metrics, bit for bit, and the same as one process except for
rounding.

If each process has all weights, the forwards exchange nothing: shares may differ, and a process that runs out of memory halves
its own batches. If weights are split, a forward is an exchange and no process can leave it half way. Then all take as many
turns as the process with the most batches; one without batches left uses a row that does not count, and before each turn all
agree whether to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from flatout.base.errors import OutOfMemory
from flatout.data.feeds.evaluation import EvalFeed
from flatout.engine.device import sync_point
from flatout.engine.evaluation import OnSplit, collect, halve, in_memory, looking
from flatout.engine.one_process import Exchange
from flatout.engine.parallel.context import own_stretches
from flatout.engine.passes import Batch
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.objectives.joining import adder
from flatout.objectives.objective import Meter, Objective, is_shared
from flatout.world.world import World

GO_ON, STOP, SPLIT = range(3)  # a process's vote before a turn; the highest wins


class _Split(Exception):
    """A process ran out of memory, and all know it. The text says which one."""


@dataclass(frozen=True)
class SharedEvaluation:
    """Created and called by every process of the `world` at the same point.

    Each process calls its own `should_stop`, and `on_wait` when it starts to wait for the others.
    """

    model: nn.Module
    objective: Objective
    feed: EvalFeed
    exchange: Exchange
    world: World
    precision: str
    device: torch.device
    should_stop: Callable[[], bool]
    on_split: OnSplit
    on_wait: Callable[[], None] = lambda: None

    def metrics(self) -> dict[str, float] | None:
        """The same on all processes; None if any of them was asked to stop."""
        with looking(self.model, self.precision, self.device):
            meter = self._in_turns() if self.world.meets_in_forward else self._by_itself()
            if meter is None:
                return None
            self.on_wait()
            with sync_point():
                return self._of_all(meter)

    def _of_all(self, meter: Meter) -> dict[str, float]:
        if is_shared(meter):
            found = self.world.gather_tensors(meter.collected() if self.world.counts else {})
            meter.put_together([share for share in found if share])
            return meter.result()
        said = self.world.gather(meter.result() if self.exchange.has_output else {})  # each process evaluated all rows
        return next((one for one in said if one), {})

    def _by_itself(self) -> Meter | None:
        def attempt() -> Meter | None:
            return collect(self.model, self.objective, self.feed, self.device, self.should_stop, self.exchange)

        splits: list[tuple[int, int, str]] = []
        own = in_memory(self.feed, self.device, lambda *split: splits.append(split), attempt)
        self.on_wait()
        said = self.world.gather((own is None, splits))
        for rank, (_, of_rank) in enumerate(said):
            for before, after, reason in of_rank:
                self.on_split(before, after, f"rank {rank}: {reason}")
        return None if any(stopped for stopped, _ in said) else own

    # ---- if a forward is an exchange ----

    def _in_turns(self) -> Meter | None:
        """All processes agree on the number of turns, the batch size and whether to stop."""
        while True:
            try:
                return self._attempt()
            except _Split as split:
                reason = str(split)
            halve(self.feed, self.device, self.on_split, reason)

    def _attempt(self) -> Meter | None:
        meter, batches = self.objective.meter(self.device), iter(self.feed)
        trouble = ""
        for _ in range(max(self.world.gather(len(self.feed)))):
            batch, counts, trouble = self._next(batches, trouble)
            if self._agreed(trouble) == STOP:
                return None
            assert batch is not None
            trouble = self._look(meter, batch, counts)
        return None if self._agreed(trouble) == STOP else meter

    def _next(self, batches: Iterator[Batch], trouble: str) -> tuple[Batch | None, bool, str]:
        """A batch, and whether it counts; None after `trouble`, an out-of-memory error."""
        if trouble:
            return None, False, trouble
        try:
            own = next(batches, None)
            return (self.feed.any_row(), False, "") if own is None else (own, True, "")
        except (RuntimeError, MemoryError) as error:
            return None, False, _of_memory(error)

    def _look(self, meter: Meter, batch: Batch, counts: bool) -> str:
        """Returns the text of an out-of-memory error, or an empty one."""
        batch = own_stretches(self.objective, batch, self.world)
        try:
            output = self.exchange.look(self.objective.forward, batch)
        except (RuntimeError, MemoryError) as error:
            reason = _of_memory(error)
            if self.world.is_split_within:
                raise self._in_the_middle(reason) from error
            return reason
        try:
            if counts and output is not None:  # None: another process has the output
                adder(self.objective, meter)(output, batch)
        except (RuntimeError, MemoryError) as error:
            return _of_memory(error)
        return ""

    def _in_the_middle(self, reason: str) -> OutOfMemory:
        """Data sent between processes can't be taken back: the next batch would receive that of this one."""
        rank, rows = self.world.rank, self.feed.batch
        fewer = f"--set evaluation_batch={rows // 2}" if rows > 1 else "use a smaller model, or split it further"
        return OutOfMemory(
            f"out of memory on rank {rank} while evaluating {rows} samples at a time ({reason}), during an exchange with other "
            f"processes: {fewer}"
        )

    def _agreed(self, trouble: str) -> int:
        said = self.world.highest(SPLIT if trouble else STOP if self.should_stop() else GO_ON)
        if said == SPLIT:
            why = self.world.gather(trouble)
            raise _Split(next(f"rank {rank}: {one}" for rank, one in enumerate(why) if one))
        return said


def _of_memory(error: RuntimeError | MemoryError) -> str:
    """The text of an out-of-memory error; other errors are raised."""
    if not is_out_of_memory(error):
        raise error
    return str(error).partition("\n")[0] or type(error).__name__
