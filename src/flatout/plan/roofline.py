"""Compares a model's groups of operations with the machine's roofline: as a table, and as a picture for web pages.

A group's height is its arithmetic per second, its horizontal place its arithmetic per byte. The slope is the memory limit, the
horizontal line the limit of matrix products. Groups without arithmetic are lined up from the left, as far below the slope as
their bytes per second are below the memory's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from flatout.base.tree import Cell, Node, Picture, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_count, show_flops, show_seconds, show_share
from flatout.plan.prediction import OperatorGroup, Prediction

_COLUMNS = (
    TableColumn("group", "group"),
    TableColumn("share", "share of time", right=True),
    TableColumn("seconds", "per step", right=True),
    TableColumn("intensity", "FLOP/byte", right=True),
    TableColumn("flops", "FLOP", right=True, shown=False),
    TableColumn("bytes", "bytes", right=True, shown=False),
    TableColumn("operators", "operators", right=True),
    TableColumn("bound", "bound by"),
)
_FOLDED_SHARE = 0.02


def roofline(prediction: Prediction) -> list[Node]:
    """Empty without a prediction, or for one of an older version without groups."""
    if not prediction.groups:
        return []
    nodes: list[Node] = [TextLine("Predicted time per step, by group of operations", strong=True), table(prediction)]
    if prediction.ceiling_flops and prediction.ceiling_bytes_per_s:
        caption = (
            "Groups of operations under the measured limits; a larger dot takes more of the step. Hollow dots only move bytes: "
            "their distance below the slope counts, not their place along it. Dots above the slope use a cache."
        )
        nodes.append(Picture(draw(prediction), caption))
    return nodes


def table(prediction: Prediction) -> Table:
    total_s = sum(group.seconds for group in prediction.groups) or 1.0
    ordered = sorted(prediction.groups, key=lambda group: -group.seconds)
    shown = [_row(group, group.seconds / total_s) for group in ordered if group.seconds >= _FOLDED_SHARE * total_s]
    folded = [_row(group, group.seconds / total_s) for group in ordered if group.seconds < _FOLDED_SHARE * total_s]
    return Table("roofline", _COLUMNS, shown, fold=folded, fold_note=f"more, each below {_FOLDED_SHARE:.0%} of the time")


def _row(group: OperatorGroup, share: float) -> dict[str, object]:
    return {
        "group": group.name,
        "share": Cell(share, show_share(share)),
        "seconds": Cell(group.seconds, show_seconds(group.seconds)),
        "intensity": Cell(group.intensity, f"{group.intensity:.3g}" if group.flops else "none"),
        "flops": Cell(group.flops, show_count(group.flops)),
        "bytes": Cell(group.bytes, show_bytes(group.bytes)),
        "operators": Cell(group.operators, f"{group.operators:.0f}"),
        "bound": group.bound,
    }


_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 24, 48
_LEAST_RADIUS, _MOST_RADIUS, _GAP = 4.0, 16.0, 6.0
_LINE_HEIGHT, _LETTER_WIDTH = 15.0, 6.5
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.grid{stroke:#8883}.roof{stroke:#c2410c;stroke-width:2;fill:none}"
    ".name{fill:#c2410c}.dot{fill:#2563eb;fill-opacity:.65;stroke:#2563eb}.bytes{fill:none;stroke:#2563eb;stroke-width:2}"
    ".lead{stroke:#8888}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.roof{stroke:#fb923c}.name{fill:#fb923c}"
    ".dot{fill:#60a5fa;stroke:#60a5fa}.bytes{stroke:#60a5fa}}"
)


@dataclass(frozen=True)
class _Scale:
    """Maps FLOP/byte and FLOP/s, both as powers of ten, to picture coordinates."""

    x_from: int
    x_to: int
    y_from: int
    y_to: int

    def x(self, intensity: float) -> float:
        return _LEFT + (math.log10(intensity) - self.x_from) / (self.x_to - self.x_from) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, flops_per_s: float) -> float:
        part = (math.log10(flops_per_s) - self.y_from) / (self.y_to - self.y_from)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


@dataclass(frozen=True)
class _Dot:
    name: str
    intensity: float
    flops_per_s: float
    share: float
    bytes_only: bool

    @property
    def radius(self) -> float:
        return max(_LEAST_RADIUS, _MOST_RADIUS * math.sqrt(self.share))


def draw(prediction: Prediction) -> str:
    """SVG; both ceilings must be known."""
    flops, bytes_per_s = float(prediction.ceiling_flops or 0), float(prediction.ceiling_bytes_per_s or 0)
    dots = list(_dots(prediction, flops / bytes_per_s))
    scale = _scale(dots, flops, bytes_per_s)
    parts = [*_grid(scale), *_roofs(scale, flops, bytes_per_s), *_marks(scale, dots)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'role="img"><title>Roofline</title><style>{_STYLE}</style>{"".join(parts)}</svg>'
    )


def _dots(prediction: Prediction, ridge: float) -> Iterator[_Dot]:
    """Largest first, so that small ones are drawn on top."""
    total_s = sum(group.seconds for group in prediction.groups)
    at_the_edge = 0
    for group in sorted(prediction.groups, key=lambda group: -group.seconds):
        if not group.seconds or not group.bytes:
            continue
        intensity = group.intensity
        if not intensity:
            intensity = ridge / 1000 * 10 ** (0.35 * at_the_edge)
            at_the_edge += 1
        rate = intensity * group.bytes / group.seconds
        yield _Dot(group.name, intensity, rate, group.seconds / total_s, not group.flops)


def _scale(dots: list[_Dot], flops: float, bytes_per_s: float) -> _Scale:
    ridge = flops / bytes_per_s
    intensities = [ridge / 1000, 10 * ridge, *(dot.intensity for dot in dots)]
    rates = [2 * flops, flops / 1e4, *(dot.flops_per_s for dot in dots)]
    lowest = max(min(rates), flops / 1e7)
    return _Scale(
        math.floor(math.log10(min(intensities))), math.ceil(math.log10(max(intensities))),
        math.floor(math.log10(lowest)), math.ceil(math.log10(max(rates))),
    )  # fmt: skip


def _grid(scale: _Scale) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    for power in range(scale.x_from, scale.x_to + 1):
        x = scale.x(10.0**power)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(scale.y_from, scale.y_to + 1):
        y = scale.y(10.0**power)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>'
    yield f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">FLOP per byte</text>'
    yield f'<text x="{_LEFT - 8}" y="{_TOP - 10}" text-anchor="end">FLOP/s</text>'


def _power(power: int) -> str:
    return f"{10.0 ** (power - 15):g}P" if power >= 15 else show_count(10.0**power)


def _roofs(scale: _Scale, flops: float, bytes_per_s: float) -> Iterator[str]:
    ridge, lowest = flops / bytes_per_s, max(10.0**scale.x_from, 10.0**scale.y_from / bytes_per_s)
    corners = ((lowest, lowest * bytes_per_s), (ridge, flops), (10.0**scale.x_to, flops))
    points = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in corners)
    yield f'<polyline class="roof" points="{points}"/>'
    right, level = _WIDTH - _RIGHT, scale.y(flops)
    yield f'<text class="name" x="{right}" y="{level - 8:.1f}" text-anchor="end">{escape(show_flops(flops))}</text>'
    x, y = scale.x(lowest) + 10, scale.y(lowest * bytes_per_s) - 26
    yield f'<text class="name" x="{x:.1f}" y="{y:.1f}">{escape(show_bytes(bytes_per_s))}/s</text>'


def _marks(scale: _Scale, dots: list[_Dot]) -> Iterator[str]:
    placed = [(dot, scale.x(dot.intensity), scale.y(max(dot.flops_per_s, 10.0**scale.y_from))) for dot in dots]
    taken = [(x - dot.radius, x + dot.radius, y) for dot, x, y in placed]
    for dot, x, y in placed:
        yield f'<circle class="{"bytes" if dot.bytes_only else "dot"}" cx="{x:.1f}" cy="{y:.1f}" r="{dot.radius:.1f}"/>'
    for dot, x, y in sorted(placed, key=lambda one: one[2]):
        yield from _label(dot, x, y, taken)


def _label(dot: _Dot, x: float, y: float, taken: list[tuple[float, float, float]]) -> Iterator[str]:
    """Next to its dot, or lower if that place is taken, with a thin line to the dot."""
    words = f"{dot.name}, {show_share(dot.share)}"
    width = _LETTER_WIDTH * len(words)
    on_the_left = x + dot.radius + width > _WIDTH - _RIGHT
    start = x - dot.radius - _GAP - width if on_the_left else x + dot.radius + _GAP
    place = y
    while any(abs(place - at) < _LINE_HEIGHT and start < to and since < start + width for since, to, at in taken):
        place += _LINE_HEIGHT / 3
    taken.append((start, start + width, place))
    end = start + width if on_the_left else start
    if place > y + _LINE_HEIGHT / 2:
        yield f'<line class="lead" x1="{x:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{place:.1f}"/>'
    anchor = "end" if on_the_left else "start"
    yield f'<text x="{end:.1f}" y="{place + 4:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
