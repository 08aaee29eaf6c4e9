"""The steps of a stack, one after another: launched from Python, or replayed as a CUDA graph.

A step of a stack has some hundred kernels, and Python takes longer to launch them than a GPU to run them. The graph holds the
whole step: it picks the rows (or reads the batch that was copied to a fixed place), reads its rates from a table and writes its
losses to one; the clock that dropout hashes counts on inside. Steps of other sizes, as the last of a budget, are launched one
kernel at a time, from the same places.

The first steps are launched too, and train: they load libraries and compile kernels, which a capture can't. A capture computes
nothing, so no state has to be saved and restored. Nothing that a step leaves behind is in the graph's own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from flatout.data.feeds.contract import CapturableFeed, Feed
from flatout.data.order.keyed import to_device
from flatout.data.source import Batch
from flatout.engine.device import release_cached
from flatout.machine.capture import captured
from flatout.tuning.training.shared import Group
from flatout.tuning.training.step_rates import StepRates

SLOTS = 64  # steps between two looks at the losses, each of which waits for the device
_WARM_UP = 2

Attempt = Callable[[Sequence[Batch], Tensor], Tensor]
"""One step: from the batch of each seed and the rate of each trial to the loss of each trial."""
Record = Callable[[torch.device, Callable[[], None]], Callable[[], object]]
"""Captures a function without computing anything, and returns what computes it. May raise RuntimeError."""


class Steps(Protocol):
    degraded: str
    """Why the steps are slower than they could be, in words; empty: they are not."""

    def seek(self, step: int) -> None: ...
    def run(self, start: int, stop: int, attempt: Attempt) -> Tensor:
        """At most SLOTS steps; the losses, [steps, trials]."""

    def release(self) -> None:
        """Give back memory; no step follows."""


def steps_for(group: Group, seeds: Sequence[int], rates: StepRates, clock: Tensor) -> Steps:
    feeds = [group.feed(seed) for seed in seeds]
    if group.device.type != "cuda":
        return LaunchedSteps(group, feeds, rates, clock)
    capturable = [found for feed in feeds if (found := feed.capturable) is not None]
    if len(capturable) < len(feeds):
        return LaunchedSteps(group, feeds, rates, clock, f"no CUDA graph: {feeds[0].why_not_capturable}")
    return GraphSteps(group, capturable, rates, clock, _captured)


class LaunchedSteps:
    """Each kernel by a call from Python."""

    def __init__(self, group: Group, feeds: Sequence[Feed], rates: StepRates, clock: Tensor, degraded: str = "") -> None:
        self._group, self._feeds, self._rates, self._clock, self.degraded = group, feeds, rates, clock, degraded

    def seek(self, step: int) -> None:
        for feed in self._feeds:
            feed.seek(self._group.samples_at(step))

    def run(self, start: int, stop: int, attempt: Attempt) -> Tensor:
        group, found = self._group, list[Tensor]()
        for step, rates in zip(range(start, stop), self._rates.table(start, stop), strict=True):
            size = group.size_at(group.samples_at(step))
            self._clock.fill_(step)
            found.append(attempt([feed.next(size) for feed in self._feeds], rates))
        return torch.stack(found)

    def release(self) -> None:
        """Nothing is held."""


class GraphSteps:
    """A step that reads all that differs between steps from fixed places, so that `record` can capture it."""

    def __init__(self, group: Group, feeds: Sequence[CapturableFeed], rates: StepRates, clock: Tensor, record: Record) -> None:
        self.degraded = ""
        self._group, self._feeds, self._step_rates, self._clock, self._record = group, feeds, rates, clock, record
        device, trials = group.device, rates.trials
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._rates = torch.zeros(SLOTS, trials, dtype=torch.float64, device=device)
        self._losses = torch.zeros(SLOTS, trials, dtype=torch.float64, device=device)
        self._ahead: tuple[int, int, Tensor] | None = None  # rates of the next steps, computed while the device is busy
        self._launched = 0
        self._replay: Callable[[], object] | None = None

    def seek(self, step: int) -> None:
        for feed in self._feeds:
            feed.seek(self._group.samples_at(step))

    def run(self, start: int, stop: int, attempt: Attempt) -> Tensor:
        group = self._group
        self._begin(start, stop)
        for step in range(start, stop):
            size = group.size_at(group.samples_at(step))
            if size == group.job.batch:
                self._whole_batch(attempt, stop - step)
            else:
                self._once([feed.next(size) for feed in self._feeds], attempt)
        following = min(stop + SLOTS, group.total_steps)
        self._ahead = stop, following, self._step_rates.table(stop, following)
        return self._losses[: stop - start]

    def release(self) -> None:
        if self._replay is not None:
            self._replay = None
            release_cached(self._group.device)

    def _begin(self, start: int, stop: int) -> None:
        self._clock.fill_(start)
        self._slot.zero_()
        known = self._ahead
        if known is None or known[0] != start or known[1] < stop:
            known = start, stop, self._step_rates.table(start, stop)
        self._rates[: stop - start].copy_(to_device(known[2][: stop - start], self._group.device))

    def _whole_batch(self, attempt: Attempt, steps_left: int) -> None:
        is_warm = self._launched >= _WARM_UP
        if self._launched == 0:
            self._load()
        if self._replay is None and is_warm and not self.degraded and steps_left > 1:
            self._capture(attempt)
        for feed in self._feeds:
            feed.bring()
        if self._replay is not None:
            self._replay()
        else:
            with nullcontext() if is_warm else self._aside():
                self._from_feeds(attempt)
            self._launched += 1
        for feed in self._feeds:
            feed.replayed()

    def _load(self) -> None:
        for feed in self._feeds:
            feed.load()

    def _capture(self, attempt: Attempt) -> None:
        self._load()  # threads that read ahead would disturb the capture
        try:
            self._replay = self._record(self._group.device, lambda: self._from_feeds(attempt))
        except RuntimeError as error:
            self.degraded = "no CUDA graph: " + str(error).strip().partition("\n")[0]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On another stream than torch's own, as in a capture."""
        if self._group.device.type != "cuda":
            yield
            return
        with torch.cuda.device(self._group.device):
            side = _side_stream(self._group.device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                yield
            torch.cuda.current_stream().wait_stream(side)

    def _from_feeds(self, attempt: Attempt) -> None:
        self._once([feed.capture_next() for feed in self._feeds], attempt)

    def _once(self, batches: Sequence[Batch], attempt: Attempt) -> None:
        losses = attempt(batches, self._rates.index_select(0, self._slot)[0])
        self._losses.index_copy_(0, self._slot, losses.to(self._losses.dtype)[None])
        self._slot.add_(1)
        self._clock.add_(1)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all stacks: libraries keep a workspace for each stream that they have met."""
    return torch.cuda.Stream(device)


def _captured(device: torch.device, step: Callable[[], None]) -> Callable[[], object]:
    with captured(device) as graph:
        step()
    return graph.replay
