"""What new events of a run add to its curves, for the page's script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flatout.base.events import Event
from flatout.reporting.charts import short
from flatout.reporting.curves import LOGGED, LOSS, curve_id
from flatout.reporting.log_scan import number_of
from flatout.reporting.thinning import extremes

_MOST = 200  # points of a curve at a time; a run that logs more often is thinned
_QUIET = ("step", "evaluation", "checkpoint_saved", "nonfinite")  # what the curves and figures show
Point = tuple[int, float]


class CurveNews:
    """`changes_the_page`: something happened that more points do not show, such as a rollback."""

    def __init__(self) -> None:
        self.changes_the_page = False
        self._log_points: list[Event] = []
        self._metrics: dict[str, list[Point]] = {}

    def hear(self, events: Iterable[Event]) -> None:
        for event in events:
            kind, step = event.get("kind"), event.get("step")
            self.changes_the_page |= kind not in _QUIET
            if kind == "step" and isinstance(step, int):
                self._log_points.append(event)
            elif kind == "evaluation" and isinstance(step, int):
                for name, value in (event.get("metrics") or {}).items():
                    if "." not in name and not math.isnan(number := number_of(value)):
                        self._metrics.setdefault(curve_id(name, is_validation=name == LOSS), []).append((step, number))

    def __bool__(self) -> bool:
        return bool(self._log_points or self._metrics)

    def data(self) -> dict[str, Any]:
        """A curve without `x` has a value at each of the `steps`."""
        points, curves = self._log_points, {}
        steps = [event["step"] for event in points]
        has_tokens = any(event.get("tokens_per_s") is not None for event in points)
        for name, chart in LOGGED.items():
            if name == "samples_per_s" and has_tokens:
                continue  # the same curve in another unit
            values = [event.get(name) for event in points]
            # a loss is null if no step since the last log point had a finite one
            if (curve := _curve(steps, values, null_is_bad=name == "loss")) is not None:
                curves[curve_id(chart)] = curve
        for name, metric in self._metrics.items():
            x, y = zip(*metric, strict=True)
            if (curve := _curve(x, y)) is not None:
                curves[name] = {"x": x, **curve}
        return {"steps": steps, "clock": self._clock(), "curves": curves}

    def _clock(self) -> list[Sequence[float]]:
        timed = [event for event in self._log_points if isinstance(event.get("elapsed_s"), int | float)]
        timed = timed[:: max(1, len(timed) // _MOST)]
        return [[event["step"] for event in timed], [short(float(event["elapsed_s"])) for event in timed]]


def _curve(steps: Sequence[int], values: Sequence[Any], *, null_is_bad: bool = False) -> Mapping[str, Any] | None:
    """None: it has no value."""
    if not values or (not null_is_bad and all(value is None for value in values)):
        return None
    if len(values) <= _MOST and all(value.__class__ in (float, int) and value - value == 0 for value in values):
        return {"y": [short(value) for value in values]}
    good, bad = list[Point](), list[int]()
    for step, value in zip(steps, values, strict=True):
        number = number_of(value)
        if math.isfinite(number):
            good.append((step, number))
        elif null_is_bad or not math.isnan(number):
            bad.append(step)
    if not good and not bad:
        return None
    if len(good) > _MOST:
        x, y = (np.array(column, dtype=np.float64) for column in zip(*good, strict=True))
        good = [good[place] for place in extremes(x, y, _MOST // 2).tolist()]
    drawn = {"x": [step for step, _ in good], "y": [short(value) for _, value in good]}
    return {**drawn, "bad": bad[:: max(1, len(bad) // _MOST)]} if bad else drawn
