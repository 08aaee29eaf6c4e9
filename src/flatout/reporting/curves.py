"""The curves of a run, with few enough points for a page, from its log."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flatout.base.events import Event
from flatout.reporting.log_scan import LogScan, number_of
from flatout.reporting.story import RunStory
from flatout.reporting.thinning import extremes, one_each

LOSS = "loss"
LOGGED = {
    "loss": LOSS, "samples_per_s": "speed in samples/s", "tokens_per_s": "speed in tokens/s", "lr": "learning rate",
    "grad_norm": "gradient norm", "memory_bytes": "peak memory", "power_w": "power in W",
}  # fmt: skip
KINDS = {"peak memory": "bytes"}
FROM_ZERO = ("speed in samples/s", "speed in tokens/s", "peak memory", "power in W")
_MOST_METRICS = 8
_MOST_BAD = 60  # marks of values that are not finite, a curve
_CLOCK = 200  # points of the map from steps to training time


def curve_id(chart: str, *, is_validation: bool = False) -> str:
    """The name of a curve of one run, for news of it."""
    return f"{chart} validation" if is_validation else chart


@dataclass
class Curve:
    """`bad`: steps whose value was not finite. `given_up`: steps that a rollback or an earlier checkpoint undid."""

    chart: str
    name: str
    steps: list[int]
    values: list[float]
    bad: list[int] = field(default_factory=list)
    given_up: bool = False
    logged: int = 0

    @property
    def id(self) -> str:
        return curve_id(self.chart, is_validation=self.name == "validation")


@dataclass
class Curves:
    curves: list[Curve]
    clock: list[tuple[int, float]]  # steps and seconds of training
    damaged: list[str]

    def steps_of(self, chart: str) -> int:
        return max((curve.logged for curve in self.curves if curve.chart == chart), default=0)


def read_curves(story: RunStory, most_points: int) -> Curves:
    """`most_points`: of all curves of the run together."""
    log = story.log
    kept = _kept(log)
    fields = [name for name in LOGGED if not np.isnan(log.numbers[name]).all()] if log.count else []
    if "tokens_per_s" in fields:
        fields.remove("samples_per_s")  # the same curve in another unit
    metrics = _metrics(log)
    stretches = max(20, most_points // (2 * max(1, len(fields) + min(len(metrics), _MOST_METRICS))))
    wanted: list[tuple[str, bool, NDArray[np.int64], NDArray[np.int64], int]] = []
    for name in fields:
        for given_up in (False, True):
            places = np.flatnonzero(kept != given_up)
            good, bad = _chosen(log, name, places, stretches // 4 if given_up else stretches)
            if len(good) or len(bad):
                wanted.append((name, given_up, good, bad, int(np.sum(~np.isnan(log.numbers[name][places])))))
    clock = np.flatnonzero(kept)
    if len(clock):
        clock = clock[np.unique(np.append(one_each(log.numbers["step"][clock], _CLOCK), len(clock) - 1))]
    all_places: NDArray[np.int64] | list[int]
    all_places = np.unique(np.concatenate([clock, *(good for _, _, good, _, _ in wanted)])) if log.count else []
    exact = log.exact(all_places)
    damaged = [str(event["why"]) for event in exact.values() if event.get("kind") == "damaged"]
    curves = []
    for name, given_up, good, bad, logged in wanted:
        pairs = list(_pairs(exact, good, name))
        steps = [int(step) for step in log.numbers["step"][bad]]
        named = "training" if name == LOSS else story.name
        curves.append(Curve(LOGGED[name], named, [s for s, _ in pairs], [v for _, v in pairs], steps, given_up, logged))
    curves += _metric_curves(story.name, metrics, stretches)
    seconds = [(step, float(elapsed)) for place in clock.tolist()
               if isinstance(step := exact[place].get("step"), int)
               and isinstance(elapsed := exact[place].get("elapsed_s"), int | float)]  # fmt: skip
    return Curves([curve for curve in curves if curve.steps or curve.bad], seconds, damaged)


def _pairs(exact: Mapping[int, Event], places: NDArray[np.int64], name: str) -> Iterator[tuple[int, float]]:
    for place in places.tolist():
        event = exact.get(place, {})
        step, value = event.get("step"), number_of(event.get(name))
        if isinstance(step, int) and math.isfinite(value):
            yield step, value


def _chosen(log: LogScan, name: str, places: NDArray[np.int64], stretches: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Log points that show the curve, and those that show where it was not finite."""
    values, steps = log.numbers[name][places], log.numbers["step"][places]
    # a loss is null if no step since the last log point had a finite one
    bad = np.flatnonzero(np.isinf(values) | (np.isnan(values) if name == LOSS else False))
    finite = np.flatnonzero(np.isfinite(values))
    if len(bad):
        bad = bad[one_each(steps[bad], _MOST_BAD)]
    if len(finite):
        finite = finite[extremes(steps[finite], values[finite], max(stretches, 1))]
    return places[finite], places[bad]


def _kept(log: LogScan) -> NDArray[np.bool_]:
    """Log points of steps that were not undone later."""
    kept = np.ones(log.count, dtype=bool)
    for before, event in log.others:
        if event.get("kind") in ("resumed", "rolled_back") and isinstance(step := event.get("step"), int):
            kept[:before] &= log.numbers["step"][:before] <= step
    return kept & np.isfinite(log.numbers["step"])


def _metrics(log: LogScan) -> dict[str, dict[int, float]]:
    """Every metric of the evaluations by step; later evaluations of a step count. Values of single classes are left out."""
    found: dict[str, dict[int, float]] = {}
    for _, event in log.others:
        step = event.get("step")
        if event.get("kind") in ("resumed", "rolled_back") and isinstance(step, int):
            found = {name: {at: value for at, value in values.items() if at <= step} for name, values in found.items()}
        metrics = event.get("metrics")
        if event.get("kind") != "evaluation" or not isinstance(step, int) or not isinstance(metrics, Mapping):
            continue
        for name, value in metrics.items():
            if "." not in name and not math.isnan(number := number_of(value)):
                found.setdefault(name, {})[step] = number
    return found


def _metric_curves(run: str, metrics: Mapping[str, Mapping[int, float]], stretches: int) -> Iterator[Curve]:
    for name, values in list(metrics.items())[:_MOST_METRICS]:
        ordered = sorted(values.items())
        finite = [(step, value) for step, value in ordered if math.isfinite(value)]
        if finite:
            steps, numbers = np.array([float(step) for step, _ in finite]), np.array([value for _, value in finite])
            finite = [finite[place] for place in extremes(steps, numbers, stretches)]
        bad = [step for step, value in ordered if not math.isfinite(value)][:_MOST_BAD]
        named = "validation" if name == LOSS else run
        yield Curve(name, named, [s for s, _ in finite], [v for _, v in finite], bad, logged=len(ordered))
