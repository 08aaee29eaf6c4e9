"""How far numbers that a model predicts are from the true ones."""

from __future__ import annotations

import numpy as np

from flatout.base.svg import Plot, bar, dot, line, linear, picture
from flatout.base.tree import Cell, Node, Picture, Table, TableColumn, TextLine
from flatout.base.units import show_count
from flatout.runs.held_out import HeldOut

_DOTS, _BARS, _WORST = 400, 30, 10
_PLOT = Plot(420, 340)


def residual_nodes(held: HeldOut) -> list[Node]:
    truth, said = held.truth.double().numpy(), held.prediction.double().numpy()
    finite = np.isfinite(truth) & np.isfinite(said)
    rows = np.flatnonzero(finite)
    if not len(rows):
        return [TextLine("Residuals", strong=True), TextLine("No prediction is finite.")]
    nodes: list[Node] = [TextLine("Predicted against true", strong=True)]
    if len(rows) < len(truth):
        nodes.append(TextLine(f"{len(truth) - len(rows):,} predictions are not finite and are left out."))
    nodes += [_scatter(truth[rows], said[rows]), _histogram(said[rows] - truth[rows])]
    worst = rows[np.argsort(-np.abs(said[rows] - truth[rows]))[:_WORST]]
    columns = (
        TableColumn("row", f"row of the {held.part} part", right=True), TableColumn("true", "true", right=True),
        TableColumn("said", "predicted", right=True), TableColumn("off", "off by", right=True),
    )  # fmt: skip
    table = [
        {
            "row": int(row), "true": _cell(truth[row]), "said": _cell(said[row]),
            "off": Cell(float(said[row] - truth[row]), _signed(said[row] - truth[row])),
        }
        for row in worst
    ]  # fmt: skip
    return [*nodes, TextLine("The worst", strong=True), Table("worst", columns, table)]


def _cell(value: float) -> Cell:
    return Cell(float(value), _shown(value))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.5g}"


def _signed(value: float) -> str:
    return f"+{_shown(value)}" if value > 0 else _shown(value)


def _scatter(truth: np.ndarray, said: np.ndarray) -> Picture:
    chosen = np.unique(np.linspace(0, len(truth) - 1, _DOTS).astype(np.int64))
    chosen = np.unique(np.append(chosen, np.argsort(-np.abs(said - truth))[:20]))  # the worst are always there
    low, high = float(min(truth.min(), said.min())), float(max(truth.max(), said.max()))
    axis = linear(low, high, 5)
    ticks = [(place, show_count(float(label))) for place, label in axis.ticks]
    parts = [*_PLOT.grid(ticks, ticks, "true", "predicted"), line("rung", _PLOT.x(0), _PLOT.y(0), _PLOT.x(1), _PLOT.y(1))]
    parts += [dot("dot", _PLOT.x(axis.at(truth[row])), _PLOT.y(axis.at(said[row])), 2) for row in chosen]
    some = f"{len(chosen):,} of {len(truth):,} rows, the worst among them" if len(chosen) < len(truth) else "Each dot is a row"
    return Picture(picture("Predicted against true", _PLOT.width, _PLOT.height, parts), f"{some}; right on the dotted line.")


def _histogram(off: np.ndarray) -> Picture:
    """Without the hundredth that is farthest off, at each end."""
    low, high = np.quantile(off, (0.01, 0.99)) if len(off) > 200 else (off.min(), off.max())
    if not high > low:
        low, high = low - 1, high + 1
    counts, edges = np.histogram(off[(off >= low) & (off <= high)], _BARS, (low, high))
    across, up = linear(float(low), float(high), 5), linear(0.0, float(max(counts.max(), 1)), 4)
    ticks = [(place, show_count(float(label))) for place, label in across.ticks]
    parts = [*_PLOT.grid(ticks, up.ticks, "predicted minus true", "rows")]
    for count, begin, end in zip(counts, edges, edges[1:], strict=False):
        left, right, top = _PLOT.x(across.at(begin)), _PLOT.x(across.at(end)), _PLOT.y(up.at(float(count)))
        parts.append(bar("bar", left + 0.5, top, right - left - 1, _PLOT.y(0) - top))
    words = f"Residuals: mean {_signed(off.mean())}, half of them within {_shown(np.median(np.abs(off)))}."
    return Picture(picture("Residuals", _PLOT.width, _PLOT.height, parts), words)
