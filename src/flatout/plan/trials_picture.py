"""A picture of the trials of settings: the measured gain of each with its 95% interval, and what was predicted."""

from __future__ import annotations

from flatout.base.svg import LINE, Plot, dot, line, linear, picture, text
from flatout.base.tree import Picture
from flatout.base.units import show_value
from flatout.measure.receipt import KEPT, Receipt

_WIDTH, _ROW, _LEFT = 760.0, 24.0, 220.0
_MOST = 30
_LETTERS = 31


def trials_picture(receipt: Receipt) -> Picture | None:
    """None if nothing was measured."""
    measured = [entry for entry in receipt.entries if entry.measured is not None]
    if not measured:
        return None
    shown = measured[:_MOST]
    plot = Plot(_WIDTH, 60 + _ROW * len(shown), left=_LEFT, right=20, top=16, bottom=44)
    gains = [1.0, *(gain for entry in shown for gain in (entry.measured, entry.low, entry.high, entry.predicted) if gain)]
    axis = linear(0.98 * min(gains), 1.02 * max(gains))
    parts = [*plot.grid([(at, f"{label}x") for at, label in axis.ticks], (), "times as fast as without it", "")]
    same = plot.x(axis.at(1.0))
    parts.append(line("cross", same, plot.top, same, plot.y(0)))
    for place, entry in enumerate(shown):
        y = plot.top + _ROW * (place + 0.5)
        kept = entry.verdict == KEPT
        parts.append(text(_LEFT - 10, y + LINE / 4, _short(f"{entry.name.replace('_', ' ')} {show_value(entry.value)}"), "end"))
        if entry.low is not None and entry.high is not None:
            low, high = plot.x(axis.at(entry.low)), plot.x(axis.at(entry.high))
            parts += [
                line("line", low, y, high, y),
                line("line", low, y - 4, low, y + 4),
                line("line", high, y - 4, high, y + 4),
            ]
        if entry.predicted is not None:
            parts.append(dot("best", plot.x(axis.at(entry.predicted)), y, 5))
        if entry.measured is not None:
            parts.append(dot("dot" if kept else "ring", plot.x(axis.at(entry.measured)), y, 4.5))
    more = f" {len(measured) - _MOST} more are in the table." if len(measured) > _MOST else ""
    caption = f"Measured gain with its 95% interval; filled: kept, hollow: rejected. Orange rings: predicted.{more}"
    return Picture(picture("Trials of settings", plot.width, plot.height, parts), caption)


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
