"""The picture of a shrink: what each try loses against the time of a call, with intervals and the front of the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.base.svg import Plot, cross, dot, line, linear, path, picture, text
from flatout.base.tree import Picture
from flatout.measure.receipt import ALL_TOGETHER, KEPT, Entry, Receipt

_PLOT = Plot(560, 340, left=70)


@dataclass(frozen=True)
class _Point:
    """`lost` and its bounds in the unit of the metric; times in milliseconds."""

    name: str
    ms: tuple[float, float, float]
    lost: tuple[float, float, float]
    is_kept: bool


def tries_picture(receipt: Receipt, about: Mapping[str, Any]) -> Picture | None:
    """None if no try got as far as an accuracy."""
    metric = about["metrics"][0]
    scale = 100.0 if metric["unit"] == "points" else 1.0
    points = [one for entry in receipt.entries if (one := _point(entry, metric["name"], scale)) is not None]
    if not points:
        return None
    source_ms = 1e3 * about["source"]["latencies"]["p50"]
    times = linear(0.0, 1.05 * max(source_ms, *(one.ms[2] for one in points)))
    margin = metric["margin"] if metric["unit"] != "percent" else None
    every = [0.0, *(value for one in points for value in one.lost), *([margin] if margin else [])]
    room = 0.06 * (max(every) - min(every) or 1.0)
    losses = linear(min(every) - room, max(every) + room)
    unit = {"points": "points", "loss": "nats", "percent": "squared error"}[metric["unit"]]
    parts = [
        *_PLOT.grid(times.ticks, losses.ticks, f"ms for a call of {about['batches'][0]} rows", f"{metric['name']} lost, {unit}")
    ]
    if margin is not None:
        y = _PLOT.y(losses.at(margin))
        parts += [
            line("rung", _PLOT.left, y, _PLOT.width - _PLOT.right, y),
            text(_PLOT.width - _PLOT.right, y - 4, "margin", "end"),
        ]
    x0, y0 = _PLOT.x(times.at(source_ms)), _PLOT.y(losses.at(0.0))
    parts += [dot("ring", x0, y0, 5), text(x0 - 8, y0 - 8, "source", "end")]
    front = _front([(source_ms, 0.0), *((one.ms[1], one.lost[1]) for one in points)])
    parts.append(path("line", [(_PLOT.x(times.at(ms)), _PLOT.y(losses.at(lost))) for ms, lost in front]))
    for one in points:
        parts += _drawn(one, times.at, losses.at)
    caption = (
        f"Each try: time of a call and {metric['name']} lost against the source, with intervals. Filled: kept; crosses: "
        "rejected. Lower and further left is better. Line: tries that no other one beats in both."
    )
    return Picture(picture("Accuracy lost against latency", _PLOT.width, _PLOT.height, parts), caption)


def _point(entry: Entry, metric: str, scale: float) -> _Point | None:
    found = next((one for one in (entry.check or {}).get("checks", []) if one["metric"] == metric), None)
    if found is None or entry.step_s is None or entry.name == ALL_TOGETHER:
        return None
    figures, ratio = found["figures"], entry.measured or 1.0
    around = (ratio / (entry.high or ratio), 1.0, ratio / (entry.low or ratio))
    low, middle, high = (1e3 * entry.step_s * one for one in around)
    lost = tuple(scale * figures[key] for key in ("lower_bound", "difference", "upper_bound"))
    named = f"{entry.name.replace('_', ' ')} {entry.value or ''}".strip()
    return _Point(named[:40], (low, middle, high), (lost[0], lost[1], lost[2]), entry.verdict == KEPT)


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for ms, lost in sorted(points):
        if not found or lost < found[-1][1]:
            found.append((ms, lost))
    return found


def _drawn(one: _Point, x_of: Any, y_of: Any) -> Iterator[str]:
    xs, ys = [_PLOT.x(x_of(value)) for value in one.ms], [_PLOT.y(y_of(value)) for value in one.lost]
    yield line("pair", xs[0], ys[1], xs[2], ys[1])
    yield line("pair", xs[1], ys[0], xs[1], ys[2])
    yield dot("top", xs[1], ys[1], 4.5) if one.is_kept else cross(xs[1], ys[1])
    yield text(xs[1] + 8, ys[1] - 6, one.name)
