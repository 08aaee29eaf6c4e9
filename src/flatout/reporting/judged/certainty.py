"""How far the probabilities of a model can be trusted (calibration), and how well they tell classes apart (ROC)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.base.svg import PART_NAMES, PARTS, Plot, bar, dot, line, linear, path, picture
from flatout.base.tree import Node, Picture, TextLine
from flatout.base.units import show_share
from flatout.runs.held_out import HeldOut

_BINS, _MOST_CURVES, _MOST_POINTS = 10, 8, 120
_PLOT = Plot(420, 360)
Numbers = NDArray[np.float64]


def certainty_nodes(held: HeldOut) -> list[Node]:
    """Empty if there were too many probabilities to keep."""
    if not len(held.probabilities):
        return []
    odds, truth = held.probabilities.double().numpy(), held.truth.numpy().astype(np.int64)
    finite = np.isfinite(odds).all(1)
    odds, truth = odds[finite], truth[finite]
    if not len(truth):
        return []
    nodes: list[Node] = [TextLine("How sure it is", strong=True), _calibration(held, odds, truth)]
    roc = _roc(held, odds, truth)
    return nodes if roc is None else [*nodes, roc]


def _calibration(held: HeldOut, odds: Numbers, truth: NDArray[np.int64]) -> Picture:
    """With two classes, of the second one; otherwise of the class that the model said."""
    of_one = odds.shape[1] == 2
    sure = odds[:, 1] if of_one else odds.max(1)
    right = truth == 1 if of_one else truth == odds.argmax(1)
    places = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    axis = linear(0.0, 1.0, 5)
    what = f"share that is {held.name_of(1)}" if of_one else "share that is right"
    parts = [*_PLOT.grid(axis.ticks, axis.ticks, "probability that the model gave", what)]
    parts.append(line("rung", _PLOT.x(0), _PLOT.y(0), _PLOT.x(1), _PLOT.y(1)))
    points, error = [], 0.0
    for place in range(_BINS):
        inside = places == place
        if not inside.any():
            continue
        share = float(inside.mean())
        given, found = float(sure[inside].mean()), float(right[inside].mean())
        error += share * abs(given - found)
        x, height = _PLOT.x(given), share * 60
        parts.append(bar("bar", x - 5, _PLOT.y(0) - height, 10, height))
        points.append((x, _PLOT.y(found)))
    parts += [path("part s1", points), *(dot("p1", x, y, 4) for x, y in points)]
    caption = (
        f"Calibration: on the dotted line, 80% means 80% of the cases. On average it is {show_share(error)} off. "
        "Bars: how many rows."
    )
    return Picture(picture("Calibration", _PLOT.width, _PLOT.height, parts), caption)


def _roc(held: HeldOut, odds: Numbers, truth: NDArray[np.int64]) -> Picture | None:
    """With two classes one curve; otherwise each class against the rest, those that are told apart worst."""
    classes = [1] if odds.shape[1] == 2 else range(odds.shape[1])
    found = [(one, *curve) for one in classes if (curve := _curve(odds[:, one], truth == one)) is not None]
    if not found:
        return None
    found.sort(key=lambda each: each[3])
    axis = linear(0.0, 1.0, 5)
    parts = [*_PLOT.grid(axis.ticks, axis.ticks, "false alarms: share of the other rows", "found: share of the class")]
    parts.append(line("rung", _PLOT.x(0), _PLOT.y(0), _PLOT.x(1), _PLOT.y(1)))
    names = []
    for number, (one, alarms, hits, area) in enumerate(found[:_MOST_CURVES]):
        thin = np.unique(np.linspace(0, len(alarms) - 1, _MOST_POINTS).astype(np.int64))
        parts.append(path(f"part s{number % PARTS}", [(_PLOT.x(alarms[at]), _PLOT.y(hits[at])) for at in thin]))
        names.append(f"{held.name_of(one)} {area:.4f} ({PART_NAMES[number % PARTS]})")
    more = f"; the other {len(found) - _MOST_CURVES} classes have larger areas" if len(found) > _MOST_CURVES else ""
    return Picture(picture("ROC", _PLOT.width, _PLOT.height, parts), f"ROC, area under the curve: {', '.join(names)}{more}.")


def _curve(scores: Numbers, is_class: NDArray[np.bool_]) -> tuple[Numbers, Numbers, float] | None:
    """Shares of false alarms and of hits for falling thresholds, and the area. None: all rows are alike."""
    total = int(is_class.sum())
    if not 0 < total < len(is_class):
        return None
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # rows with equal scores have one threshold
    hits = np.cumsum(is_class[order])[ends]
    alarms = ends + 1 - hits
    hits, alarms = np.concatenate(([0], hits)) / total, np.concatenate(([0], alarms)) / (len(is_class) - total)
    return alarms, hits, float(np.trapezoid(hits, alarms))
