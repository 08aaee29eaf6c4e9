"""The ledger as one bar: its parts add up to the wall time of the run."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.base.svg import PARTS, bar, picture, text
from flatout.base.tree import Picture
from flatout.base.units import show_seconds

_WIDTH, _LEFT, _BAR, _ROW, _COLUMN = 960.0, 4.0, 34.0, 22.0, 236.0
_LEAST = 0.001  # of the whole, to be named


def ledger_picture(ledger: Mapping[str, float]) -> Picture | None:
    """None without a moment of time."""
    whole = sum(ledger.values())
    if whole <= 0:
        return None
    ordered = sorted(((row, spent) for row, spent in ledger.items() if spent > 0), key=lambda pair: -pair[1])
    named = [(row, spent) for row, spent in ordered if spent >= _LEAST * whole]
    parts, x = [], _LEFT
    for place, (_, spent) in enumerate(ordered):
        width = spent / whole * (_WIDTH - 2 * _LEFT)
        parts.append(bar(f"p{place % PARTS}", x, 4, width - (1 if width > 3 else 0), _BAR))
        x += width
    across = int((_WIDTH - 2 * _LEFT) // _COLUMN)
    for place, (row, spent) in enumerate(named):
        left, y = _LEFT + place % across * _COLUMN, _BAR + 20 + place // across * _ROW
        parts += [bar(f"p{place % PARTS}", left, y, 11, 11)]
        parts.append(text(left + 18, y + 10, f"{row}: {show_seconds(spent)}, {spent / whole:.1%}"))
    height = _BAR + 26 + _ROW * -(-len(named) // across)
    caption = f"All of the {show_seconds(whole)} of wall time, longest first."
    return Picture(picture("Where the time went", _WIDTH, height, parts), caption)
