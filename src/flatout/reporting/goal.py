"""When several runs were equally good: the best score of the worst of them, and when each reached it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flatout.reporting.story import RunStory


class Goal:
    """The best score of the worst of several runs: all of them reached it."""

    def __init__(self, metric: str, value: float, *, higher_is_better: bool) -> None:
        self.metric, self.value, self._higher = metric, value, higher_is_better

    def reached(self, story: RunStory, figure: str) -> float | None:
        """A figure of the last log point before the first evaluation that is at least as good: `elapsed_s`, `energy_j`."""
        for before, event in story.log.others:
            value = (event.get("metrics") or {}).get(self.metric) if event.get("kind") == "evaluation" else None
            if isinstance(value, int | float) and (value >= self.value if self._higher else value <= self.value):
                value = story.log.exact([before - 1])[before - 1].get(figure) if before else None
                return float(value) if isinstance(value, int | float) else None
        return None


def goal_of(stories: Sequence[RunStory]) -> Goal | None:
    """None if the runs do not judge themselves by the same metric."""
    scored = [story for story in stories if best_of(story) is not None]
    metrics = {story.result["best"].get("metric") for story in scored}
    values = [value for story in scored if (value := best_of(story)) is not None]
    if len(metrics) != 1 or len(values) < 2:
        return None
    metric = str(metrics.pop())
    higher = is_higher_better(stories, metric)
    return Goal(metric, min(values) if higher else max(values), higher_is_better=higher)


def best_of(story: RunStory) -> float | None:
    value = (story.result.get("best") or {}).get("value")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def is_higher_better(stories: Sequence[RunStory], metric: str) -> bool:
    """Whether higher is better: what a run marked as its best tells."""
    for story in stories:
        marked = [
            (event.get("metrics") or {}).get(metric)
            for event in story.events
            if event.get("kind") == "evaluation" and event.get("best")
        ]
        known = [value for value in marked if isinstance(value, int | float)]
        if len(known) > 1 and known[0] != known[-1]:
            return known[-1] > known[0]
    return metric != "loss"
