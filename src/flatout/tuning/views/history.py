"""A study's trials and layouts, read from its log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.tuning.study.folder import StudyFolder


@dataclass
class TrialLine:
    number: int
    point: Mapping[str, Any]
    step: int = 0
    score: float | None = None  # at that step
    failed: str = ""
    scores: dict[int, float] = field(default_factory=dict)  # by step


@dataclass(frozen=True)
class History:
    metric: str
    higher_is_better: bool
    total_steps: int
    trials: Sequence[TrialLine]
    layouts: Sequence[Mapping[str, Any]]
    rungs: Sequence[Mapping[str, Any]]
    seconds: float

    @property
    def failed(self) -> Mapping[str, int]:
        return Counter(trial.failed for trial in self.trials if trial.failed)

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


def read_history(folder: StudyFolder) -> History:
    about = folder.asked["about"]
    trials: dict[int, TrialLine] = {}
    layouts, rungs, seconds = [], [], 0.0
    for event in folder.events():
        if event["kind"] == "layout":
            layouts.append(event["layout"])
        elif event["kind"] == "rung":
            rungs.append(event)
            seconds = event["spent"]["seconds"]
            for number, point in event["trials"]:
                trial = trials.setdefault(number, TrialLine(number, point))
                trial.step = event["to"]
                trial.score = event["scores"][str(number)]
                if trial.score is not None:
                    trial.scores[event["to"]] = trial.score
                trial.failed = event["failed"].get(str(number), "")
    result = folder.result
    seconds = seconds if result is None else result["seconds"]
    return History(
        about["metric"], about["higher_is_better"], about["total_steps"], list(trials.values()), layouts, rungs, seconds
    )
