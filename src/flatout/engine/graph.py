"""The whole step, update included, as one CUDA graph: one launch from the host instead of hundreds.

The graph writes its scalars to, and reads its learning rate from, fixed places on the device; rates that are known ahead are
written there by the hundred. If the data is on the device, the graph picks the next rows itself, so that a replay needs nothing
from the host; otherwise the next batch is copied to where the graph reads it. The warm-up runs real kernels, and all state is
restored afterwards. So every step of a run, also the first one and the one after a resume, is a replay of the same graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from flatout.base.events import EventLog
from flatout.data.feeds.contract import CapturableFeed, Feed
from flatout.data.order.keyed import to_device
from flatout.engine.compiling import is_compilers, why_not
from flatout.engine.records import GraphRecords, Records
from flatout.engine.settings import LOG_SLOTS
from flatout.engine.state import TrainState
from flatout.engine.step import Step
from flatout.machine.capture import captured

_WARMUP_STEPS = 3
_RATES_AHEAD = 512


class GraphStep:
    def __init__(self, step: Step, feed: CapturableFeed, rows: int, slots: int) -> None:
        self.step = step
        self.feed = feed
        self.rows = rows
        self.records = GraphRecords(step.device, slots, compiled=step.passes.compiled)
        self._rates = torch.zeros(len(step.update.device_rates), slots, device=step.device)
        self._rated: list[float] = []  # the table's rates for the steps since the last log point and for the next ones
        self._look_up = torch.compile(_look_up, dynamic=False) if step.passes.compiled else _look_up
        self._replay: Callable[[], object] = lambda: None

    def capture(self, saved_state: Callable[[], list[Tensor]], restore: Callable[[list[Tensor]], None]) -> None:
        """`saved_state` copies everything that a step changes, `restore` puts it back (new optimizer state becomes zeros)."""
        before, position = saved_state(), self.feed.position
        self.step.passes.warm(self.rows)
        self.step.records = self.records
        try:
            self._record()
        except RuntimeError:
            self.step.update.optimizer.zero_grad(set_to_none=True)  # they are in the memory of the failed graph
            raise
        finally:
            self.step.records = Records()
            self.step.update.rate = math.nan  # the rate on the device is from the warm-up
            restore(before)
            self.feed.seek(position)
            self.reload()

    def _record(self) -> None:
        self.feed.load()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARMUP_STEPS):
                self._once()
        torch.cuda.current_stream().wait_stream(side)
        self.step.update.optimizer.zero_grad(set_to_none=True)
        with captured(self.step.device) as graph:
            self._once()
        self._replay = graph.replay

    def _once(self) -> None:
        self._look_up(list(self.step.update.device_rates.values()), self._rates, self.records.slot)
        self.step.attempt(self.feed.capture_next(), self.rows)

    def reload(self) -> None:
        """Call after the feed was moved to another position."""
        self.feed.load()
        self.records.reset()

    def __call__(self, rate_in: Callable[[int], float], known_ahead: bool) -> None:
        """`rate_in(n)` is the learning rate n steps from now; with a budget of time or money only the next one is known."""
        done = self.records.filled
        if done == 0:  # after a log point the graph starts at the first place again
            self._rated = []
        if done == len(self._rated):
            self._rate(
                done,
                [rate_in(ahead) for ahead in range(min(_RATES_AHEAD, self.records.slots - done))]
                if known_ahead
                else [rate_in(0)],
            )
        self.step.update.rate = self._rated[done]
        self._replay()
        self.feed.replayed()
        self.records.replayed()

    def _rate(self, done: int, rates: list[float]) -> None:
        self._rated += rates
        places = self._rates[:, done : done + len(rates)]
        if len(rates) == 1:
            for place, factor in zip(places, self.step.update.device_rates, strict=True):
                place.fill_(rates[0] * factor)
        else:
            table = torch.tensor([[rate * factor for rate in rates] for factor in self.step.update.device_rates])
            places.copy_(to_device(table, self.step.device))


def _look_up(rates: list[Tensor], table: Tensor, slot: Tensor) -> None:
    for rate, row in zip(rates, table, strict=True):
        rate.copy_(row.index_select(0, slot).squeeze(0))


def capture_step(step: Step, feed: Feed, state: TrainState, rows: int, events: EventLog) -> GraphStep | None:
    """None, with an event, if the step can't be captured: it is then launched kernel by kernel."""
    if (capturable := feed.capturable) is None:
        events.emit("degraded", what="graph", value=False, why=feed.why_not_capturable)
        return None
    try:
        return _captured(step, capturable, state, rows)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        why = f"the step can't be captured, its kernels are launched one by one: {reason}"
        events.emit("degraded", what="graph", value=False, why=why)
        return None


def _captured(step: Step, feed: CapturableFeed, state: TrainState, rows: int) -> GraphStep:
    graph = GraphStep(step, feed, rows, LOG_SLOTS)
    try:
        graph.capture(state.copies, state.put_back)
    except RuntimeError as error:
        if not step.passes.compiled or not is_compilers(error):
            raise
        why = why_not(error)
    else:
        step.passes.say_eager()
        return graph
    step.go_eager(why)
    return _captured(step, feed, state, rows)
