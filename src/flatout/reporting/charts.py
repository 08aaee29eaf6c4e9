"""The curves of one run or of several as charts of a page: data for its script, and pictures for readers without scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flatout.base.svg import PART_NAMES, PARTS, Plot, linear, logarithmic, path, picture
from flatout.base.tree import Charts, Picture
from flatout.base.units import show_count
from flatout.reporting.curves import FROM_ZERO, KINDS, LOSS, Curve, Curves, read_curves
from flatout.reporting.moments import marks_of
from flatout.reporting.story import RunStory
from flatout.reporting.thinning import extremes

MOST_POINTS = 5000  # of all curves on a page: about 70 kB
_PICTURED = 240  # points of all curves in a picture
_PLOT = Plot(480, 240)


def charts_of(stories: Sequence[RunStory], ids: Sequence[str] = ()) -> tuple[Charts | None, list[str]]:
    """None without a curve. And the reasons why points are missing. `ids`: of a live page, the runs' names in its news."""
    read = [read_curves(story, MOST_POINTS // len(stories)) for story in stories]
    names = _ordered({curve.chart for curves in read for curve in curves.curves})
    if not names:
        return None, []
    charts = [_chart(name, stories, read, live=bool(ids)) for name in names]
    runs = [
        {"name": story.name, "steps": _differences([step for step, _ in curves.clock]),
         "seconds": [short(seconds) for _, seconds in curves.clock]}
        for story, curves in zip(stories, read, strict=True)
    ]  # fmt: skip
    if ids:
        runs = [{**run, "id": one} for run, one in zip(runs, ids, strict=True)]
    marks = [{**mark, "run": place} for place, story in enumerate(stories) for mark in marks_of(story)]
    longest = max(curves.steps_of(name) for curves in read for name in names)
    drawn = max(len(curve.steps) for curves in read for curve in curves.curves)
    how = "Drag to zoom, double-click to zoom out."
    if longest > drawn:
        how += f" {show_count(longest)} log points, drawn as the lowest and highest of each stretch."
    named = [
        (curve.name if len(stories) == 1 else story.name, curve)
        for story, curves in zip(stories, read, strict=True)
        for curve in curves.curves
    ]
    pictures = [_picture(name, [(label, curve) for label, curve in named if curve.chart == name]) for name in names]
    data = {"charts": charts, "runs": runs, "marks": marks, "note": how}
    return Charts(data, pictures), [why for curves in read for why in curves.damaged]


def _ordered(names: Iterable[str]) -> list[str]:
    """The loss first, then metrics, then how it was trained."""
    last = ["learning rate", "speed in samples/s", "speed in tokens/s", "gradient norm", "peak memory", "power in W"]
    return sorted(names, key=lambda name: (name != LOSS, last.index(name) if name in last else -1, name))


def _chart(name: str, stories: Sequence[RunStory], read: Sequence[Curves], *, live: bool) -> dict[str, Any]:
    series, levels = [], []
    for place, (story, curves) in enumerate(zip(stories, read, strict=True)):
        for curve in (one for one in curves.curves if one.chart == name):
            if curve.given_up and len(stories) > 1:
                continue  # many runs are enough to look at
            drawn = _series(curve, place, alone=len(stories) == 1, run=story.name)
            series.append({**drawn, "id": curve.id} if live and not curve.given_up else drawn)
        baseline = story.metrics.get(f"baseline.{name}")
        if isinstance(baseline, int | float) and math.isfinite(baseline):
            levels.append({"run": place, "colour": place, "value": baseline})
    every = [value for one in series for value in one["y"]]
    several = len(stories) > 1
    dashed = [*(["validation"] if several and name == LOSS else []), *(["baseline"] if levels else [])]
    titled = f"{name} (dashed: {', '.join(dashed)})" if dashed else name
    return {
        "title": titled, "kind": KINDS.get(name, ""), "log": _falls_far(name, every),
        "positive": bool(every) and max(every) > 0, "zero": name in FROM_ZERO, "series": series, "levels": levels,
    }  # fmt: skip


def _series(curve: Curve, place: int, *, alone: bool, run: str) -> dict[str, Any]:
    validation = curve.name == "validation"
    name = curve.name if alone else f"{run}, {curve.name}" if validation else run
    found: dict[str, Any] = {
        "name": f"{name}, given up" if curve.given_up else name,
        "run": place,
        "colour": 1 if alone and validation else place % PARTS,
        "x": _differences(curve.steps),
        "y": [short(value) for value in curve.values],
    }
    if curve.bad:
        found["bad"] = _differences(curve.bad)
    if curve.given_up:
        found["style"] = "faint"
    elif validation and not alone:
        found["style"] = "dash"
    return found


def _differences(steps: Sequence[int]) -> list[int]:
    return [*steps[:1], *(later - earlier for earlier, later in pairwise(steps))]


def short(value: float) -> float | int:
    """Five digits are more than a curve shows."""
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _picture(name: str, curves: Sequence[tuple[str, Curve]]) -> Picture:
    """For readers without scripts. `curves` have their names there."""
    drawn = [(label, curve) for label, curve in curves if curve.steps and not curve.given_up]
    shown = [curve for _, curve in drawn]
    every = [value for curve in shown for value in curve.values]
    if not every:
        return Picture(picture(name, _PLOT.width, _PLOT.height, []), f"{name}: no finite value")
    across = linear(min(curve.steps[0] for curve in shown), max(curve.steps[-1] for curve in shown))
    low = 0.0 if name in FROM_ZERO else min(every)
    up = logarithmic(low, max(every)) if _falls_far(name, every) else linear(low, max(every), 5)
    ticks = [(place, show_count(float(label))) for place, label in across.ticks]
    heights = [(place, show_count(float(label))) for place, label in up.ticks]
    parts = list(_PLOT.grid(ticks, heights, "step", name))
    colours: dict[str, int] = {}
    for label, curve in drawn:
        chosen = extremes(np.array(curve.steps, dtype=np.float64), np.array(curve.values), _PICTURED // (2 * len(shown)))
        points = [(_PLOT.x(across.at(curve.steps[i])), _PLOT.y(up.at(curve.values[i]))) for i in chosen.tolist()]
        colour = colours.setdefault(label, len(colours)) % PARTS
        parts.append(path(f"part s{colour}", points))
    named = ", ".join(f"{curve} ({PART_NAMES[number % PARTS]})" for curve, number in colours.items())
    return Picture(picture(name, _PLOT.width, _PLOT.height, parts), named if len(colours) > 1 else "")


def _falls_far(name: str, values: Sequence[float]) -> bool:
    """A loss that falls that far can be seen on a log scale only."""
    return name == LOSS and bool(values) and min(values) > 0 and max(values) > 30 * min(values)
