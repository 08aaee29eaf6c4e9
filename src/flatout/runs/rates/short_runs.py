"""Short trainings of copies of a job's model, with its own loss, optimizer, schedule and order of rows.

The job's model, its optimizer and the position of its data stay as they are.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from flatout.data.cache.cache import Cache, disk_bytes
from flatout.data.feeds.contract import Feed
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.feeds.feed import feed as make_feed
from flatout.data.source import Batch, Source
from flatout.engine.assembly import Made, make_step
from flatout.engine.device import start_counting, sync_point
from flatout.engine.evaluation import looking
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.engine.surroundings import process_set_up

_LOOK_EVERY = 16  # steps between two looks at the losses, each of which waits for the device
_EVALUATED_ROWS = 4096
_TAIL = 0.1  # the share of a training whose mean loss is its last one, where there are no held-out rows


@dataclass(frozen=True)
class ShortRun:
    """`loss`: of held-out rows after the last step, else the mean of the last tenth. It is infinite if the run diverged."""

    rate: float
    seed: int
    losses: tuple[float, ...]
    loss: float
    seconds: float


class ShortRuns:
    def __init__(self, job: Job, settings: Settings, cache: Path | None) -> None:
        """Without graphs and compilation, whose preparation takes longer than these trainings."""
        self._job = job
        self._settings = replace(settings, graph=False, compile="off", mesh="", pipeline=Settings.pipeline)
        self._device = torch.device(settings.device)
        self._pristine = copy.deepcopy(job.model).cpu()
        compression = "none" if settings.cache_compression == "auto" else settings.cache_compression
        self._cache = None if cache is None else Cache(cache, disk_bytes(cache, settings.disk_budget), compression)
        self._feeds: dict[int, Feed] = {}
        self._held_out: EvalFeed | None = None
        self.has_held_out = job.data.validation is not None
        self.steps_done = 0

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.release()
        if self._held_out is not None:
            self._held_out.close()

    def train(
        self,
        rate_at: Callable[[int], float],
        steps: int,
        seed: int,
        *,
        stop: Callable[[list[float]], bool] = lambda losses: False,
    ) -> tuple[list[float], Made]:
        """The loss of every step, and the trained copy. `stop` gets all losses so far, every few steps."""
        start_counting(self._device)
        found: list[float] = []
        with process_set_up(self._settings, seed):
            made = make_step(self._job, copy.deepcopy(self._pristine), self._settings)
            feed = self._feed(seed)
            made.step.passes.warm(self._job.batch)
            for number in range(steps):
                made.step.update.set_rate(rate_at(number))
                made.step(feed.next(feed.next_size(self._job.batch)))
                if number % _LOOK_EVERY == _LOOK_EVERY - 1 or number == steps - 1:
                    found += made.step.records.drain().losses
                    if stop(found):
                        break
        self.steps_done += len(found)
        return found, made

    def whole(self, rate: float, steps: int, seed: int, total_steps: int) -> ShortRun:
        """A training of `steps` steps with the job's whole schedule, which is that of `total_steps`, squeezed."""
        began_s, schedule = time.perf_counter(), self._job.schedule
        stretch = total_steps / steps

        def rate_at(number: int) -> float:
            return rate * schedule.at(int(number * stretch), number / steps, total_steps)

        losses, made = self.train(rate_at, steps, seed, stop=lambda losses: not all(map(math.isfinite, losses[-_LOOK_EVERY:])))
        loss = math.inf
        if len(losses) == steps and math.isfinite(losses[-1]):
            loss = self._held_out_loss(made, seed) if self.has_held_out else mean_of_tail(losses)
        return ShortRun(rate, seed, tuple(losses), loss if math.isfinite(loss) else math.inf, time.perf_counter() - began_s)

    def _feed(self, seed: int) -> Feed:
        """From the start of this seed's order."""
        if seed not in self._feeds:
            tier = self._tier(self._job.data.train)
            self._feeds[seed] = make_feed(
                self._job.data, tier, self._job.batch, self._device, seed,
                cache=self._cache, threads=self._settings.reader_threads, prefetch=self._settings.prefetch,
            )  # fmt: skip
        feed = self._feeds[seed]
        feed.seek(0)
        return feed

    def _tier(self, source: Source) -> str:
        """On a GPU not resident: several orders of rows would each hold the data."""
        return self._settings.tier if self._device.type == "cpu" else "pinned" if source.in_memory else "streamed"

    def _held_out_loss(self, made: Made, seed: int) -> float:
        """The mean loss of up to 4,096 held-out rows, evenly spread."""
        data = self._job.data
        assert data.validation is not None
        if self._held_out is None:
            tier = self._tier(data.validation)
            rows = self._settings.evaluation_batch or self._job.batch
            self._held_out = EvalFeed(data.validation, data.prepare, rows, self._device, tier, keep=True, cache=self._cache)
        feed = self._held_out
        every = max(1, len(feed) // max(1, math.ceil(_EVALUATED_ROWS / feed.batch)))
        total: Tensor | float = 0.0
        weight: Tensor | float = 0.0
        averaged = nullcontext() if made.average is None else made.average.in_place()
        with process_set_up(self._settings, seed), averaged, looking(made.step.model, self._settings.precision, self._device):
            for place, batch in enumerate(feed):
                if place % every == 0:
                    loss_sum, part = self._loss_of(made, batch)
                    total, weight = total + loss_sum, weight + part
            with sync_point():
                return float(total / weight)

    def _loss_of(self, made: Made, batch: Batch) -> tuple[Tensor, Tensor | float]:
        objective = self._job.objective
        return objective.loss(objective.forward(made.step.model, batch), batch)


def mean_of_tail(losses: list[float]) -> float:
    last = losses[-max(1, round(_TAIL * len(losses))) :]
    return sum(last) / len(last)
