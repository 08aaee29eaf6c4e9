"""Which classes a model confuses: a matrix, the most frequent confusions, and recall and precision of each class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.base.svg import RANKS, bar, picture, text
from flatout.base.tree import Cell, Node, Picture, Table, TableColumn, TextLine
from flatout.base.units import show_share
from flatout.runs.held_out import HeldOut

_MOST_IN_MATRIX, _MOST_PAIRS, _MOST_SHOWN, _MOST_FOLDED = 20, 10, 10, 200
_LEAST_WIDTH = 340.0
_NAME = 14  # letters of a class in the matrix
Counts = NDArray[np.int64]


def class_nodes(held: HeldOut) -> list[Node]:
    counts = _counts(held)
    nodes: list[Node] = [TextLine("Which classes it confuses", strong=True)]
    if len(counts) <= _MOST_IN_MATRIX:
        nodes.append(_matrix(held, counts))
    else:
        nodes += _pairs(held, counts)
    return [*nodes, _by_class(held, counts)]


def _counts(held: HeldOut) -> Counts:
    """Rows are what is true, columns what the model said."""
    truth, said = held.truth.numpy().astype(np.int64), held.prediction.numpy().astype(np.int64)
    size = int(max(truth.max(initial=0), said.max(initial=0), len(held.class_names) - 1)) + 1
    return np.bincount(truth * size + said, minlength=size * size).reshape(size, size)


def _matrix(held: HeldOut, counts: Counts) -> Picture:
    size = len(counts)
    names = [_short(held.name_of(number)) for number in range(size)]
    longest = max(map(len, names))
    left, cell = 40 + 7.5 * longest, max(34.0, min(64.0, 560 / size), 7.5 * len(str(counts.max())) + 10)
    top, side = 44.0, cell * size
    parts = [text(4, 18, "true class, and what the model said")]
    for place, name in enumerate(names):
        parts.append(text(left - 8, top + cell * (place + 0.5) + 5, name, "end"))
        fits = len(name) * 7.5 <= cell
        parts.append(text(left + cell * (place + 0.5), top - 8, name if fits else name[: max(1, int(cell / 8))], "middle"))
    for row in range(size):
        of_class = max(1, int(counts[row].sum()))
        for column in range(size):
            count = int(counts[row, column])
            x, y = left + cell * column, top + cell * row
            rank = 0 if not count else min(RANKS - 1, 1 + int((RANKS - 1) * 0.999 * count / of_class))
            if count:
                parts.append(bar(f"d{rank}", x + 1, y + 1, cell - 2, cell - 2))
            if count:
                parts.append(text(x + cell / 2, y + cell / 2 + 5, str(count), "middle", f"on{rank}"))
    caption = "A row for each true class; the stronger, the larger its share. What is right lies on the diagonal."
    return Picture(picture("Confusion matrix", max(left + side + 12, _LEAST_WIDTH), top + side + 10, parts), caption)


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _pairs(held: HeldOut, counts: Counts) -> list[Node]:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = [place for place in np.argsort(wrong, axis=None)[::-1][:_MOST_PAIRS] if wrong.flat[place]]
    columns = (TableColumn("true", "true class"), TableColumn("said", "said"), TableColumn("rows", "rows", right=True))
    rows = []
    for place in order:
        true, said = divmod(int(place), len(counts))
        rows.append({"true": held.name_of(true), "said": held.name_of(said), "rows": int(wrong.flat[place])})
    return [TextLine(f"The most frequent of {int(wrong.sum()):,} mistakes:"), Table("confusions", columns, rows)]


_COLUMNS = (
    TableColumn("class", "class"),
    TableColumn("rows", "rows", right=True),
    TableColumn("recall", "recall", right=True),
    TableColumn("precision", "precision", right=True),
)


def _by_class(held: HeldOut, counts: Counts) -> Table:
    """The worst first."""
    right, true, said = counts.diagonal(), counts.sum(1), counts.sum(0)
    rows = [(right[one] / true[one], one) for one in range(len(counts)) if true[one]]
    table = [
        {
            "class": held.name_of(one), "rows": Cell(int(true[one]), f"{true[one]:,}"),
            "recall": Cell(float(recall), show_share(float(recall))),
            "precision": Cell(float(right[one] / said[one]), show_share(float(right[one] / said[one]))) if said[one] else None,
        }
        for recall, one in sorted(rows)
    ]  # fmt: skip
    return Table(
        "classes", _COLUMNS, table[:_MOST_SHOWN], fold=table[_MOST_SHOWN : _MOST_SHOWN + 200], fold_note="more classes"
    )
