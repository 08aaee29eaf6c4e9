"""Progress in a notebook: one cell of HTML with a bar, a line of figures and the curve of the loss. It only reads events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from html import escape

from flatout.base.events import Event
from flatout.measure.time_left import TimeLeft
from flatout.runs.progress_lines import View, fitting, time_left

Show = Callable[[str], None]
_EVERY_S = 0.25
_MOST_POINTS, _MOST_LINES = 400, 12
_WIDTH, _HEIGHT, _EDGE = 480, 140, 4
_COLOURS = {"training": "#4477aa", "validation": "#ee6677"}


class LiveCell:
    """`show` replaces the content of the cell by other HTML."""

    def __init__(self, show: Show) -> None:
        self._show, self._view, self._left = show, View(), TimeLeft()
        self._planning: list[str] = []
        self._notices: list[str] = []
        self._curves: dict[str, list[tuple[float, float]]] = {"training": [], "validation": []}
        self._words, self._done, self._shown_s = "planning", 0.0, -_EVERY_S
        self._draw()

    def __call__(self, event: Event) -> None:
        self._left(event)
        line, kind = self._view.notice(event), event["kind"]
        if line is not None:
            (self._planning if kind == "planning" else self._notices).append(line)
        if kind == "step":
            self._words, self._done = fitting(self._view.step_parts(event)) + time_left(self._left), event["done"]
            self._add("training", event["step"], event.get("loss"))
        if kind == "evaluation":
            self._add("validation", event["step"], event["metrics"].get("loss"))
        if line is not None or time.monotonic() - self._shown_s >= _EVERY_S:
            self._draw()

    def close(self) -> None:
        self._draw()

    def _add(self, curve: str, step: int, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            return
        points = self._curves[curve]
        points.append((step, value))
        if len(points) > _MOST_POINTS:
            del points[1:-1:2]

    def _draw(self) -> None:
        self._shown_s = time.monotonic()
        self._show(self.html())

    def html(self) -> str:
        share = f"{100 * min(max(self._done, 0.0), 1.0):.0f}%"
        bar = (
            '<div style="width:480px;height:6px;border:1px solid currentColor;border-radius:4px">'
            f'<div style="width:{share};height:100%;background:{_COLOURS["training"]}"></div></div>'
        )
        tried = f"<details{'' if self._notices else ' open'}><summary>planning</summary>{_lines(self._planning)}</details>"
        parts = [tried if self._planning else "", _lines(self._notices), bar, f"<div>{share} {escape(self._words)}</div>"]
        return f'<div style="font-family:monospace">{"".join(parts)}{self._svg()}</div>'

    def _svg(self) -> str:
        every = [point for points in self._curves.values() for point in points]
        if len(every) < 2:
            return ""
        steps, values = [step for step, _ in every], [value for _, value in every]
        low, high, last = min(values), max(values), max(steps)
        wide, tall = _WIDTH - 2 * _EDGE, _HEIGHT - 2 * _EDGE

        def place(step: float, value: float) -> str:
            down = (high - value) / (high - low) if high > low else 0.5
            return f"{_EDGE + wide * step / max(1, last):.1f},{_EDGE + tall * down:.1f}"

        lines = "".join(
            f'<polyline fill="none" stroke="{_COLOURS[name]}" stroke-width="1.5" '
            f'points="{" ".join(place(*point) for point in points)}"/>'
            for name, points in self._curves.items()
            if points
        )
        words = f"loss {low:.4g} to {high:.4g}, {last:,} steps" + (" (red: validation)" if self._curves["validation"] else "")
        return f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{lines}</svg><div>{words}</div>'


def _lines(lines: list[str]) -> str:
    if not lines:
        return ""
    first, rest = lines[:1], lines[1:]
    left_out = [f"({len(rest) - _MOST_LINES} lines left out)"] if len(rest) > _MOST_LINES else []
    return f'<pre style="margin:0">{escape(chr(10).join([*first, *left_out, *rest[-_MOST_LINES:]]))}</pre>'
