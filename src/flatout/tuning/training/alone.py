"""Trials one after another, each with the engine's own step: what a stack is compared with, and what any model can do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.assembly import Made, make_step
from flatout.engine.device import start_counting, sync_point
from flatout.engine.evaluation import collect, looking
from flatout.engine.progress import Progress
from flatout.engine.state import TrainState
from flatout.engine.surroundings import process_set_up, read_random_state, restore_random_state
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.keyed_dropout import dropout_key, key_dropouts, set_dropouts
from flatout.tuning.training.outcomes import DIVERGED, Stopped, TrialLosses, never
from flatout.tuning.training.shared import CHOOSE, Group

_LOOK_EVERY = 64  # steps between two looks at the losses, each of which waits for the device


@dataclass
class _Trial:
    made: Made
    clock: Tensor
    step: int = 0
    losses: TrialLosses = field(default_factory=TrialLosses)
    random_state: dict[str, Any] | None = None


class Alone:
    """Trains the trials of a group one by one. A trial that failed is left out and keeps its reason."""

    layout = "serial"
    degraded = ""

    def __init__(self, group: Group, candidates: Sequence[TrialCandidate]) -> None:
        self.group = group
        self.candidates = {one.number: one for one in candidates}
        self.failed: dict[int, str] = {}
        self._trials: dict[int, _Trial] = {}
        start_counting(group.device)

    @property
    def alive(self) -> list[int]:
        return [number for number in self.candidates if number not in self.failed]

    def train(self, to: int, should_stop: Stopped = never) -> None:
        """Train each trial up to step `to`."""
        for number in self.alive:
            self.train_one(number, to, should_stop)

    def train_one(self, number: int, to: int, should_stop: Stopped = never) -> None:
        group, candidate = self.group, self.candidates[number]
        trial = self._trial(number)
        own, feed, update = candidate.own, group.feed(candidate.seed), trial.made.step.update
        with self._surroundings(trial, candidate.seed):
            feed.seek(group.samples_at(trial.step))
            while trial.step < to:
                if should_stop():
                    raise KeyboardInterrupt
                last = min(to, trial.step + _LOOK_EVERY)
                for step in range(trial.step, last):
                    samples = group.samples_at(step)
                    share = own.schedule.at(step, samples / group.total_samples, group.total_steps)
                    update.set_rate(own.lr * share)
                    trial.clock.fill_(step)
                    trial.made.step(feed.next(group.size_at(samples)))
                trial.step = last
                with sync_point():
                    trial.losses.add(trial.made.step.records.drain().losses)
                if trial.losses.diverged:
                    self.failed[number] = DIVERGED
                    del self._trials[number]
                    return

    def scores(self, which: str = CHOOSE) -> dict[int, float | None]:
        """The metric of each trial; None for those that failed."""
        found: dict[int, float | None] = dict.fromkeys(self.candidates)
        for number in self.alive:
            score = self.metrics(number, which).get(self.group.measure.metric, math.nan)
            if math.isfinite(score):
                found[number] = score
            else:
                self.failed[number] = f"its {self.group.measure.metric} is not a finite number"
        return found

    def metrics(self, number: int, which: str = CHOOSE) -> dict[str, float]:
        group, trial = self.group, self._trial(number)
        model, job = trial.made.step.model, group.job
        averaged = nullcontext() if trial.made.average is None else trial.made.average.in_place()
        with (
            self._surroundings(trial, self.candidates[number].seed),
            averaged,
            looking(model, group.settings.precision, group.device),
        ):
            meter = collect(model, job.evaluated, group.scoring(which), group.device, lambda: False, None)
            assert meter is not None
            with sync_point():
                return meter.result()

    def keep(self, numbers: Sequence[int]) -> None:
        """Forget all others, and free their memory."""
        self.candidates = {number: self.candidates[number] for number in numbers}
        self.failed = {number: why for number, why in self.failed.items() if number in self.candidates}
        self._trials = {number: trial for number, trial in self._trials.items() if number in self.candidates}

    def model(self, number: int) -> nn.Module:
        return self._trial(number).made.step.model

    def gradients_of(self, number: int) -> dict[str, Tensor]:
        """Of the last step, clipped as they were applied."""
        named = self.model(number).named_parameters()
        return {name: one.grad.detach() for name, one in named if one.grad is not None}

    def state_of(self, number: int) -> dict[str, Any]:
        """Everything that the trial's next step depends on. `resume` takes it."""
        trial = self._trial(number)
        return {**_train_state(trial.made, self.group).tree(Progress(step=trial.step)), "random": trial.random_state}

    def resume(self, step: int, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Go on from what `state_of` gave for each trial after `step` steps."""
        for number, state in states.items():
            trial = self._trial(number)
            with process_set_up(self.group.settings, self.candidates[number].seed):
                _train_state(trial.made, self.group).restore(dict(state))
                trial.made.step.update.state_loaded()
            trial.step, trial.random_state = step, dict(state["random"])

    def step_of(self, number: int) -> int:
        return self._trials[number].step if number in self._trials else 0

    def losses(self, number: int) -> TrialLosses:
        return self._trial(number).losses

    def _trial(self, number: int) -> _Trial:
        if number not in self._trials:
            candidate, group = self.candidates[number], self.group
            own = candidate.own
            job = replace(
                group.job, lr=own.lr, weight_decay=own.weight_decay, clip=own.clip, schedule=own.schedule,
                optimizer=candidate.optimizer, seed=candidate.seed,
            )  # fmt: skip
            model = group.model(candidate.seed).to(group.device)
            clock = torch.zeros((), dtype=torch.int64, device=group.device)
            keys = key_dropouts(model, clock)
            set_dropouts(model, keys, dropout_key(candidate.seed, number), candidate.dropout)
            with process_set_up(group.settings, candidate.seed):
                made = make_step(job, model, group.settings)
                made.step.passes.warm(job.batch)
            self._trials[number] = _Trial(made, clock)
        return self._trials[number]

    @contextmanager
    def _surroundings(self, trial: _Trial, seed: int) -> Iterator[None]:
        """The process as a run sets it up, and the trial's own random numbers."""
        with process_set_up(self.group.settings, seed):
            if trial.random_state is not None:
                restore_random_state(trial.random_state, self.group.device)
            yield
            trial.random_state = read_random_state(self.group.device)


def _train_state(made: Made, group: Group) -> TrainState:
    return TrainState(made.step.model, made.optimizer, made.average, made.step.scale, group.device)
