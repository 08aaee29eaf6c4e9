"""What a study's events say about how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flatout.base.budget import Budget
from flatout.base.units import show_metric, show_seconds

_MEASURING, _TRAINING, _FINALS = "measuring", "training", "training the best again"


class StudyState:
    """`hear` takes the events in order. A study that goes on begins with the events that its folder has."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.metric, self.higher_is_better, self.total_steps = "score", True, 0
        self.budget: Budget | None = None
        self.most_trials: int | None = None
        self.rungs: list[Mapping[str, Any]] = []
        self.doing = _MEASURING
        self.layout, self.why = "", ""  # of the trials that were measured last
        self.rate = 0.0  # trial-steps a second, of the last rung
        self.best: tuple[int, int, float, Mapping[str, Any]] | None = None  # trial, step, score, point
        self.finals = 0
        self._steps: dict[int, int] = {}  # how far each trial is
        self._failed: set[int] = set()
        self._spent_s, self._heard_s = 0.0, clock()

    def hear(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind in ("begun", "resumed"):
            self._begin(event)
        elif kind == "layout":
            self.layout = str(event["layout"]["kind"])
            self.why = f"{self.layout}: {event['layout']['why']}"
            self.doing = _FINALS if self.finals else _TRAINING
        elif kind == "rung":
            self._add(event)
            self._spent_s, self._heard_s = event["spent"]["seconds"], self._clock()
            self.doing = _TRAINING
        elif kind == "finals":
            self.finals += len(event["scores"])
            self.doing = _FINALS

    def best_first(self, rung: Mapping[str, Any]) -> list[float]:
        return sorted((score for score in rung["scores"].values() if score is not None), reverse=self.higher_is_better)

    def best_line(self) -> str:
        assert self.best is not None
        number, step, score, point = self.best
        far = f", step {step:,} of {self.total_steps:,}" if step < self.total_steps else ""
        values = " ".join(f"{key}={value}" for key, value in point.items())
        return f"{self.metric} {show_metric(score)}, trial {number}{far}: {values}"

    def trials_line(self) -> str:
        """How many are trained whole, go on as it stands, were dropped, and failed."""
        most = f" of {self.most_trials:,}" if self.most_trials is not None else ""
        known = f"trials: {len(self._steps):,}{most}"
        if not self.rungs:
            return known
        failed, last = len(self._failed), {number for number, _ in self.rungs[-1]["trials"]}
        if not self.total_steps:
            return f"{known}, {failed} failed"
        going = [number for number in self._steps if number not in self._failed]
        done = sum(self._steps[number] >= self.total_steps for number in going)
        alive = sum(number in last and self._steps[number] < self.total_steps for number in going)
        return f"{known}: {done} done, {alive} alive, {len(going) - done - alive} dropped, {failed} failed"

    def time_line(self) -> str:
        spent_s = self._spent_s + self._clock() - self._heard_s
        if self.budget is None:
            return _time(spent_s)
        if self.budget.unit == "seconds":
            share, left_s = spent_s / self.budget.amount, self.budget.amount - spent_s
        else:  # money and energy: as fast as until the last rung
            share = self.rungs[-1]["share"] if self.rungs else 0.0
            left_s = self._spent_s * (1 / share - 1) - (spent_s - self._spent_s) if share else 0.0
        left = f", about {_time(left_s)} left" if left_s >= 1 else ""
        whole = _time(self.budget.amount) if self.budget.unit == "seconds" else str(self.budget)
        return f"{_time(spent_s)}, {min(share, 1):.0%} of {whole}{left}"

    def _begin(self, event: Mapping[str, Any]) -> None:
        self._heard_s = self._clock()
        self.most_trials = event.get("trials")
        self.budget = Budget.parse(event["budget"]) if event.get("budget") else None
        if "folder" not in event:
            return
        from flatout.tuning.study.folder import StudyFolder

        folder = StudyFolder(Path(event["folder"]))
        about = folder.asked["about"]
        self.metric, self.higher_is_better = about["metric"], about["higher_is_better"]
        self.total_steps = about["total_steps"]
        for earlier in folder.events():
            if earlier["kind"] == "rung":
                self._add(earlier)
                self._spent_s = earlier["spent"]["seconds"]

    def _add(self, rung: Mapping[str, Any]) -> None:
        self.rungs.append(rung)
        points, steps = dict(rung["trials"]), 0
        for number in points:
            steps += rung["to"] - self._steps.get(number, 0)
            self._steps[number] = rung["to"]
        self._failed |= {int(number) for number in rung["failed"]}
        self.rate = steps / max(rung["training_s"], 1e-9)
        for name, score in rung["scores"].items():
            if score is not None and self._is_best(rung["to"], score):
                self.best = int(name), rung["to"], score, points[int(name)]

    def _is_best(self, step: int, score: float) -> bool:
        """A whole training counts before any that was trained for a part: their scores do not compare."""
        if self.best is None or step != self.best[1]:
            return self.best is None or step > self.best[1]
        return score > self.best[2] if self.higher_is_better else score < self.best[2]


def _time(seconds: float) -> str:
    """Whole seconds: more digits would flicker."""
    return show_seconds(float(round(seconds))) if seconds >= 0.5 else "0 s"
