"""A picture of the final trainings: the winner against the recipe as it was, every seed's score and the intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from flatout.base.svg import Axis, Plot, dot, line, linear, path, picture, text
from flatout.base.tree import Picture
from flatout.base.units import show_metric
from flatout.tuning.study.finals import RECIPE

_ROWS = (78.0, 178.0)
_PLOT = Plot(500, 280, left=24, right=24, top=34, bottom=46)


def finals_picture(result: Mapping[str, Any]) -> Picture:
    is_recipe = result["winner"]["number"] == RECIPE
    rows = [("recipe as it was", result["again"], result["scores"])]
    if not is_recipe:
        rows = [
            (f"winner, trial {result['winner']['number']}", result["again"], result["scores"]),
            ("recipe as it was", result["recipe"], result["recipe_scores"]),
        ]
    in_search = result["score_in_search"]
    shown = [score for _, interval, scores in rows for score in (*scores, interval["low"], interval["high"])]
    shown = [score for score in [*shown, *([] if in_search is None else [in_search])] if math.isfinite(score)]
    room = 0.04 * (max(shown) - min(shown))
    axis = linear(min(shown) - room, max(shown) + room)
    parts = list(_PLOT.grid(axis.ticks, (), str(result["metric"]), ""))
    if not is_recipe:
        pairs = zip(result["scores"], result["recipe_scores"], strict=False)
        parts += [line("pair", _x(axis, ours), _ROWS[0], _x(axis, theirs), _ROWS[1]) for ours, theirs in pairs]
    for y, (name, interval, scores) in zip(_ROWS, rows, strict=False):
        parts += _row(axis, y, name, interval, scores)
    searched = ""
    if in_search is not None and not is_recipe:
        x, y = _x(axis, in_search), _ROWS[0]
        parts.append(path("best", [(x - 6, y), (x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)]))
        searched = " Diamond: the winner's score in the search."
    paired = "" if is_recipe else " A thin line joins two trainings with the same seed."
    caption = (
        f"Trained again with {result['again']['n']} fresh seeds: a dot a seed, the mean, and where 95% of trainings lie."
        f"{paired}{searched}"
    )
    return Picture(picture("Final trainings", _PLOT.width, _PLOT.height, parts), caption)


def _row(axis: Axis, y: float, name: str, interval: Mapping[str, Any], scores: list[float]) -> Iterator[str]:
    yield text(_PLOT.left, y - 24, f"{name}: {show_metric(interval['mean'])}", kind="title")
    if math.isfinite(interval["low"]) and math.isfinite(interval["high"]):
        low, high = _x(axis, interval["low"]), _x(axis, interval["high"])
        yield line("line", low, y + 16, high, y + 16)
        yield line("line", low, y + 11, low, y + 21) + line("line", high, y + 11, high, y + 21)
    mean = _x(axis, interval["mean"])
    yield line("best", mean, y + 9, mean, y + 23)
    yield from (dot("dot", _x(axis, score), y, 4.5) for score in scores)


def _x(axis: Axis, score: float) -> float:
    return _PLOT.x(axis.at(score))
