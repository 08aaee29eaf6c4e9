"""What the trials of a group share: the job of the first of them, the rows of each step, and the rows that score them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from flatout.base.errors import UsageError
from flatout.data.cache.cache import Cache, disk_bytes
from flatout.data.feeds.contract import Feed
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.feeds.feed import feed as make_feed
from flatout.data.order.keyed import hash32, keyed
from flatout.data.source import Batch, Source
from flatout.engine.job import Job
from flatout.engine.progress import budget_of
from flatout.engine.settings import Settings
from flatout.machine.meters import Meters
from flatout.plan.make import settings_for_trials
from flatout.recipe.build import build_job, check_job
from flatout.recipe.schema import Recipe

CHOOSE, JUDGE = "choose", "judge"
"""Rows that choose between trials, and rows that judge the winner and chose nothing."""


@dataclass(frozen=True)
class Measure:
    """The figure that trials are compared by."""

    metric: str
    higher_is_better: bool

    @classmethod
    def of(cls, job: Job) -> Measure:
        if job.best_by is not None:
            return cls(job.best_by.metric, job.best_by.higher_is_better)
        return cls(job.objective.metric, job.objective.better == "max")


class Group:
    """Of trials whose recipes differ in `OwnValues` alone."""

    def __init__(self, recipe: Recipe, cache: Path | None, threads: int = 0) -> None:
        self.recipe = recipe
        self.job = build_job(recipe, cache)
        self.settings = trial_settings(recipe, self.job, cache, threads)
        self.device = torch.device(self.settings.device)
        check_job(self.job, self.device)
        _refuse_what_no_study_can_do(self.job)
        budget = budget_of(self.job, Meters(torch.device("cpu")))
        assert budget.total_samples is not None and budget.total_steps is not None
        self.total_samples, self.total_steps = budget.total_samples, budget.total_steps
        self.measure = Measure.of(self.job)
        self._cache = None if cache is None else Cache(cache, disk_bytes(cache, self.settings.disk_budget), "none")
        self._feeds: dict[int, Feed] = {}
        self._pristine: dict[int, nn.Module] = {recipe.seed: copy.deepcopy(self.job.model).cpu()}
        self._scoring: dict[str, ScoringRows] = {}

    @property
    def judged_on(self) -> str:
        """In words: the rows that judge the winner, and chose nothing."""
        data = self.job.data
        assert data.validation is not None
        if data.test is not None:
            return f"the {len(data.test):,} rows of the test part"
        return f"half of the {len(data.validation):,} held-out rows; the other half chose"

    def model(self, seed: int) -> nn.Module:
        """A copy with the first weights of this seed, on the host."""
        if seed not in self._pristine:
            made = build_job(reseeded(self.recipe, seed), None)
            self._pristine[seed] = made.model.cpu()
        return copy.deepcopy(self._pristine[seed])

    def feed(self, seed: int) -> Feed:
        """The rows of each step, in the order of this seed."""
        if seed not in self._feeds:
            self._feeds[seed] = make_feed(
                self.job.data, self.settings.tier, self.job.batch, self.device, seed,
                cache=self._cache, threads=self.settings.reader_threads, prefetch=self.settings.prefetch,
            )  # fmt: skip
        return self._feeds[seed]

    def in_precision(self, precision: str) -> Group:
        """The same group, feeds included, with steps in another precision."""
        other = copy.copy(self)
        other.settings = Settings(**{**self.settings.to_dict(), "precision": precision})
        return other

    def in_threads(self, count: int) -> Group:
        """The same group, feeds included, with steps in so many threads."""
        other = copy.copy(self)
        other.settings = replace(self.settings, threads=count)
        return other

    @contextmanager
    def with_threads(self, count: int) -> Iterator[None]:
        """Inside, trials are trained with so many threads; 0: as before."""
        before = self.settings
        self.settings = replace(before, threads=count) if count else before
        try:
            yield
        finally:
            self.settings = before

    def size_at(self, samples: int) -> int:
        """Rows of the step after so many samples: a whole batch, or what is left of the budget."""
        return min(self.job.batch, self.total_samples - samples)

    def samples_at(self, step: int) -> int:
        return min(step * self.job.batch, self.total_samples)

    def scoring(self, which: str) -> ScoringRows:
        if which not in self._scoring:
            self._scoring[which] = self._rows_for(which)
        return self._scoring[which]

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.release()
        for rows in self._scoring.values():
            rows.close()

    def _rows_for(self, which: str) -> ScoringRows:
        data = self.job.data
        assert data.validation is not None
        if data.test is not None:
            return ScoringRows(self._eval_feed(data.test if which == JUDGE else data.validation), None)
        return ScoringRows(self._eval_feed(data.validation), which == JUDGE)

    def _eval_feed(self, source: Source) -> EvalFeed:
        rows = self.settings.evaluation_batch or self.job.batch
        return EvalFeed(source, self.job.data.prepare, rows, self.device, self.settings.tier, keep=True, cache=self._cache)


class ScoringRows:
    """Batches of an evaluation. `half`: only rows of the second (True) or the first (False) half, drawn by their number."""

    def __init__(self, feed: EvalFeed, half: bool | None) -> None:
        self._feed, self._half = feed, half
        self._picked: list[Tensor] = []

    def __iter__(self) -> Iterator[Batch]:
        start = 0
        for place, batch in enumerate(self._feed):
            size = len(next(iter(batch.values())))
            if self._half is None:
                yield batch
            else:
                if place == len(self._picked):
                    self._picked.append(self._rows(start, size).to(next(iter(batch.values())).device))
                if len(picked := self._picked[place]):
                    yield {name: column[picked] for name, column in batch.items()}
            start += size

    def close(self) -> None:
        self._feed.close()

    def _rows(self, start: int, size: int) -> Tensor:
        numbers = torch.arange(start, start + size)
        second = (hash32(numbers, keyed(0, "judge")) & 1).bool()
        return torch.nonzero(second if self._half else ~second).flatten()


def trial_settings(recipe: Recipe, job: Job, cache: Path | None, threads: int) -> Settings:
    """As a run's, without what takes longer to prepare than a trial may last, or is measured for trials anyway."""
    chosen = settings_for_trials(recipe, job, cache, {**recipe.pins, "threads": max(1, threads)}).to_dict()
    plain = Settings()
    kept_plain = ("graph", "compile", "mesh", "pipeline", "micro_batch")
    chosen |= {name: getattr(plain, name) for name in kept_plain} | {"threads": threads}
    return Settings(**chosen)


def reseeded(recipe: Recipe, seed: int) -> Recipe:
    """The same recipe with another seed; data that was read stays in memory."""
    made: Recipe = recipe.model_copy(update={"seed": seed})
    return made


def _refuse_what_no_study_can_do(job: Job) -> None:
    if job.data.train.stream is not None:
        raise UsageError(
            "tune reads the rows many times, which a stream gives only once: use files, arrays or a map-style Dataset"
        )
    if job.data.train.shapes_vary:
        raise UsageError("tune needs rows of one shape: batches of sequences of differing lengths are not supported yet")
    if job.data.validation is None:
        raise UsageError("tune compares trials on held-out rows, and this recipe has none: set data.holdout=0.2")
    if not job.budget.counted:
        raise UsageError(
            f"tune needs trials of a known length, and the recipe's budget is {job.budget}: write it in epochs, steps, samples "
            "or tokens. The time of the whole study is --budget"
        )
    if job.frozen.until:
        raise UsageError("tune can't unfreeze parts in the middle of a trial yet: leave unfreeze out while tuning")
    if job.exchange is not None:
        raise UsageError("tune trains each trial in one process: leave exchange out while tuning")
