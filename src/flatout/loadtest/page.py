"""The result of a load test as a page: figures, latency over time, its distribution, and the rates that a search tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flatout.base.svg import Plot, dot, line, linear, logarithmic, path, picture
from flatout.base.tree import Cell, Code, Doc, Figure, Figures, Node, Picture, Table, TableColumn, TextLine
from flatout.base.units import show_seconds
from flatout.loadtest.figures import ALL_QUANTILES, LoadFigures, LoadSpan, merged_spans
from flatout.loadtest.finding import HighestRate
from flatout.loadtest.goal import LoadGoal
from flatout.loadtest.measuring import LoadResult
from flatout.loadtest.showing import found_lines, percent, rate_text, result_text, step_table

_MOST = 120  # points of a curve
_PLOT = Plot(480, 260)
_FACTS = (TableColumn("key", ""), TableColumn("value", ""))


def result_doc(result: LoadResult, goal: LoadGoal | None, asked: Mapping[str, Any]) -> Doc:
    found = result.figures
    nodes: list[Node] = [Figures(list(_figures(found, goal)))]
    if (problem := result.generator_problem) is not None:
        nodes.append(TextLine(f"The generator was the limit, not the server: latencies are upper bounds. {problem}"))
    nodes += _pictures(found, goal)
    nodes += [TextLine("In words", strong=True), Code(result_text(result, goal)), *_asked(asked)]
    return Doc(tuple(nodes))


def search_doc(found: HighestRate, goal: LoadGoal, asked: Mapping[str, Any]) -> Doc:
    figures = [Figure(f"highest rate with {goal}", "none" if found.rate is None else f"{rate_text(found.rate)}/s")]
    if found.missed is not None:
        figures.append(Figure("missed at", f"{rate_text(found.missed)}/s"))
    nodes: list[Node] = [Figures(figures), *map(TextLine, found_lines(found, goal))]
    if (drawn := _search_picture(found, goal)) is not None:
        nodes.append(drawn)
    nodes += [TextLine("Rates that were tried", strong=True), step_table(found, goal)]
    held = [step for step in found.steps if step.held and step.rate == found.rate]
    if held:
        nodes += [TextLine(f"At {rate_text(held[-1].rate)}/s", strong=True), *_pictures(held[-1].result.figures, goal)]
    return Doc((*nodes, *_asked(asked)))


def _figures(found: LoadFigures, goal: LoadGoal | None) -> Iterator[Figure]:
    yield Figure("answered", f"{rate_text(found.achieved_rate)}/s", f"{rate_text(found.offered_rate)}/s offered")
    if found.good:
        for share in (0.5, 0.99):
            yield Figure(f"p{100 * share:g}", show_seconds(found.latency_s(share)), "of good answers")
    without = f"{found.not_good:,} without" if found.not_good else "all requests"
    yield Figure("good answers", f"{found.good:,}", without)
    if goal is not None:
        within = found.share_within(goal)
        yield Figure(f"goal {goal}", "held" if within >= goal.share else "missed", f"{percent(within)} in time")


def _pictures(found: LoadFigures, goal: LoadGoal | None) -> list[Node]:
    drawn = [_over_time(found.spans, goal), _distribution(found, goal)]
    return [one for one in drawn if one is not None]


def _over_time(spans: Sequence[LoadSpan], goal: LoadGoal | None) -> Picture | None:
    groups = merged_spans(spans, _MOST)
    rows = [(group[0].from_s, _worst(one.p50_s for one in group), _worst(one.p99_s for one in group)) for group in groups]
    rows = [row for row in rows if row[2] == row[2]]
    if len(rows) < 2:
        return None  # too short
    across = linear(rows[0][0], rows[-1][0])
    up = logarithmic(min(row[1] for row in rows), max(*(row[2] for row in rows), goal.limit_s if goal else 0.0))
    parts = [*_PLOT.grid(across.ticks, _seconds(up.ticks), "seconds since the start", "latency by second")]
    for kind, place in (("part s0", 1), ("part s1", 2)):
        points = [(_PLOT.x(across.at(row[0])), _PLOT.y(up.at(row[place]))) for row in rows]
        parts.append(path(kind, points))
    parts += _goal_line(goal, up.at)
    return Picture(picture("Latency over time", _PLOT.width, _PLOT.height, parts), f"p50 (blue), p99 (orange){_red(goal)}.")


def _distribution(found: LoadFigures, goal: LoadGoal | None) -> Picture | None:
    """Tails are as wide as the rest: each further nine takes as much room."""
    if found.good < 2:
        return None
    shares = [share for share in ALL_QUANTILES if 0 < share < 1 and (1 - share) * found.good >= 1]
    if not shares:
        return None
    values = [found.latency_s(share) for share in shares]
    across = linear(0.0, -math.log10(1 - shares[-1]))
    ticks = [(across.at(-math.log10(1 - share)), f"p{100 * share:g}") for share in (0.5, 0.9, 0.99, 0.999, 0.9999)]
    up = logarithmic(values[0], max(values[-1], goal.limit_s if goal else 0.0))
    shown = [tick for tick, share in zip(ticks, (0.5, 0.9, 0.99, 0.999, 0.9999), strict=True) if share <= shares[-1]]
    parts = [*_PLOT.grid(shown, _seconds(up.ticks), "share of good answers", "answered within")]
    parts.append(path("part s0", [(_PLOT.x(across.at(-math.log10(1 - share))), _PLOT.y(up.at(value)))
                                  for share, value in zip(shares, values, strict=True)]))  # fmt: skip
    parts += _goal_line(goal, up.at)
    return Picture(picture("Distribution of latency", _PLOT.width, _PLOT.height, parts), f"Latency by share{_red(goal)}.")


def _search_picture(found: HighestRate, goal: LoadGoal) -> Picture | None:
    steps = [(step, step.result.figures.latency_s(goal.share)) for step in found.steps if step.result.figures.good]
    if not steps:
        return None
    plot = Plot(760, 300)
    rates, values = [step.rate for step, _ in steps], [value for _, value in steps]
    across, up = logarithmic(min(rates), max(rates)), logarithmic(min(values), max(*values, goal.limit_s))
    parts = [*plot.grid(across.ticks, _seconds(up.ticks), "requests per second", f"p{100 * goal.share:g}")]
    y = plot.y(up.at(goal.limit_s))
    parts.append(line("cross", plot.left, y, plot.width - plot.right, y))
    parts += [
        dot("dot" if step.held else "ring", plot.x(across.at(step.rate)), plot.y(up.at(value)), 5) for step, value in steps
    ]
    words = "Each dot is a rate that was tried; filled: the goal (red line) was held, hollow: missed."
    return Picture(picture("Rates that were tried", plot.width, plot.height, parts), words)


def _goal_line(goal: LoadGoal | None, at: Any) -> list[str]:
    if goal is None:
        return []
    y = _PLOT.y(at(goal.limit_s))
    return [line("cross", _PLOT.left, y, _PLOT.width - _PLOT.right, y)]


def _red(goal: LoadGoal | None) -> str:
    return "" if goal is None else "; the red line is the goal"


def _seconds(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    return [(place, show_seconds(float(label))) for place, label in ticks]


def _worst(values: Iterator[float]) -> float:
    return max((value for value in values if value == value), default=math.nan)


def _asked(asked: Mapping[str, Any]) -> list[Node]:
    rows = [
        {"key": key.replace("_", " "), "value": Cell(value, str(value))} for key, value in asked.items() if value is not None
    ]
    return [TextLine("What was asked", strong=True), Table("asked", _FACTS, rows)]
