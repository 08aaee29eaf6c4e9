"""What new events of a run add to its curves, for the page's script."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from flatout.base.events import Event
from flatout.reporting.charts import short
from flatout.reporting.curves import LOGGED, LOSS, curve_id
from flatout.reporting.log_scan import number_of
from flatout.reporting.thinning import extremes

_MOST = 200  # points of a curve at a time; a run that logs more often is thinned
_QUIET = ("step", "evaluation", "checkpoint_saved", "nonfinite")  # what the curves and figures show


class CurveNews:
    """`changes_the_page`: something happened that more points do not show, such as a rollback."""

    def __init__(self) -> None:
        self.changes_the_page = False
        self._clock: list[tuple[int, float]] = []
        self._points: dict[str, list[tuple[int, float]]] = {}

    def hear(self, events: Iterable[Event]) -> None:
        for event in events:
            kind, step = event.get("kind"), event.get("step")
            self.changes_the_page |= kind not in _QUIET
            if kind == "step" and isinstance(step, int):
                self._log_point(step, event)
            elif kind == "evaluation" and isinstance(step, int):
                for name, value in (event.get("metrics") or {}).items():
                    if "." not in name:
                        self._add(curve_id(name, is_validation=name == LOSS), step, number_of(value))

    def _log_point(self, step: int, event: Event) -> None:
        if isinstance(elapsed := event.get("elapsed_s"), int | float):
            self._clock.append((step, float(elapsed)))
        for name, chart in LOGGED.items():
            if name == "samples_per_s" and event.get("tokens_per_s") is not None:
                continue  # the same curve in another unit
            value = number_of(event.get(name))
            # a loss is null if no step since the last log point had a finite one
            self._add(curve_id(chart), step, math.inf if name == "loss" and math.isnan(value) else value)

    def _add(self, curve: str, step: int, value: float) -> None:
        if not math.isnan(value):
            self._points.setdefault(curve, []).append((step, value))

    def __bool__(self) -> bool:
        return bool(self._points)

    def data(self) -> dict[str, Any]:
        clock = self._clock[:: max(1, len(self._clock) // _MOST)]
        return {
            "clock": [[step for step, _ in clock], [short(seconds) for _, seconds in clock]],
            "curves": {name: _curve(points) for name, points in self._points.items()},
        }


def _curve(points: list[tuple[int, float]]) -> dict[str, Any]:
    good = [(step, value) for step, value in points if math.isfinite(value)]
    bad = [step for step, value in points if not math.isfinite(value)]
    if len(good) > _MOST:
        steps, values = (np.array(column, dtype=np.float64) for column in zip(*good, strict=True))
        good = [good[place] for place in extremes(steps, values, _MOST // 2).tolist()]
    return {"x": [step for step, _ in good], "y": [short(value) for _, value in good], "bad": bad[:: max(1, len(bad) // _MOST)]}
