"""A study's trials, layouts and final trainings, read from its log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.tuning.study.folder import StudyFolder
from flatout.tuning.study.ledger import parts_in

WHOLE, DROPPED, FAILED = "whole", "dropped", "failed"


@dataclass
class TrialLine:
    number: int
    point: Mapping[str, Any]
    step: int = 0
    score: float | None = None  # at that step
    failed: str = ""
    scores: dict[int, float] = field(default_factory=dict)  # by step
    spent_s: float = 0.0  # by the study, when the trial was last trained
    began_at: float = 0.0  # Unix time
    ended_at: float = 0.0


@dataclass(frozen=True)
class FinalScores:
    """Trainings of some trials with the same fresh seeds; `scores`: by the trial's number and the seed's place."""

    which: str
    scores: Mapping[int, Mapping[int, float]]


@dataclass(frozen=True)
class StudyHistory:
    metric: str
    higher_is_better: bool
    total_steps: int
    trials: Sequence[TrialLine]
    layouts: Sequence[Mapping[str, Any]]  # events: the group of trials, their number, and the layout
    rungs: Sequence[Mapping[str, Any]]
    finals: Sequence[FinalScores]
    seconds: float
    damaged: Sequence[str]  # lines of the log that can't be read
    parts: Mapping[str, float] = field(default_factory=dict)  # seconds of the study so far by what they were used for

    @property
    def failed(self) -> Mapping[str, int]:
        return Counter(trial.failed for trial in self.trials if trial.failed)

    @property
    def scored(self) -> list[TrialLine]:
        return [trial for trial in self.trials if trial.score is not None]

    @property
    def best_first(self) -> list[TrialLine]:
        """Those that were trained longest come first: scores at different steps do not compare."""
        sign = -1.0 if self.higher_is_better else 1.0

        def order(trial: TrialLine) -> tuple[bool, int, float]:
            return trial.score is None, -trial.step, 0.0 if trial.score is None else sign * trial.score

        return sorted(self.trials, key=order)

    @property
    def best(self) -> TrialLine | None:
        first = self.best_first[0] if self.trials else None
        return None if first is None or first.score is None else first

    def state(self, trial: TrialLine) -> str:
        if trial.score is None:
            return FAILED
        return WHOLE if trial.step >= self.total_steps else DROPPED

    def is_better(self, one: float, other: float) -> bool:
        return one > other if self.higher_is_better else one < other

    def common_step(self, count: int) -> int | None:
        """The latest step at which at least so many trials have a score, so that these compare."""
        reached = Counter(step for trial in self.trials for step in trial.scores)
        return max((step for step, trials in reached.items() if trials >= max(count, 1)), default=None)


def read_history(folder: StudyFolder) -> StudyHistory:
    about = folder.asked["about"]
    trials: dict[int, TrialLine] = {}
    layouts: list[Mapping[str, Any]] = []
    rungs: list[Mapping[str, Any]] = []
    finals: list[FinalScores] = []
    damaged: list[str] = []
    for event in folder.events():
        if event["kind"] == "layout":
            layouts.append(event)
        elif event["kind"] == "rung":
            rungs.append(event)
            _add_rung(trials, event)
        elif event["kind"] == "finals":
            finals.append(_final_scores(event))
        elif event["kind"] == "damaged":
            damaged.append(event["why"])
    result = folder.result
    seconds = result["seconds"] if result is not None else rungs[-1]["spent"]["seconds"] if rungs else 0.0
    ordered = [trials[number] for number in sorted(trials)]
    parts = result.get("parts", {}) if result is not None else parts_in(rungs)
    metric, higher_is_better, steps = about["metric"], about["higher_is_better"], about["total_steps"]
    return StudyHistory(metric, higher_is_better, steps, ordered, layouts, rungs, finals, seconds, damaged, parts)


def _add_rung(trials: dict[int, TrialLine], event: Mapping[str, Any]) -> None:
    for number, point in event["trials"]:
        trial = trials.setdefault(number, TrialLine(number, point, began_at=event["at"] - event["seconds"]))
        trial.step, trial.spent_s, trial.ended_at = event["to"], event["spent"]["seconds"], event["at"]
        trial.score, trial.failed = event["scores"].get(str(number)), event["failed"].get(str(number), "")
        if trial.score is None:
            trial.failed = trial.failed or "no score"
        elif math.isfinite(trial.score):
            trial.scores[trial.step] = trial.score
        else:
            trial.score, trial.failed = None, f"its score is {trial.score}"


def _final_scores(event: Mapping[str, Any]) -> FinalScores:
    scores: dict[int, dict[int, float]] = {}
    for number, seed, score in event["scores"]:
        if not isinstance(score, str) and math.isfinite(score):
            scores.setdefault(number, {})[seed] = score
    return FinalScores(event["which"], scores)
