"""What a search for a learning rate found, and its curve: as text for a terminal, as a picture, as one tree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from flatout.base.errors import TrainingError
from flatout.base.kinds import check_kinds
from flatout.base.tree import Cell, Doc, Fields, Node, Picture, Table, TableColumn, TextLine, to_text
from flatout.base.units import show_metric, show_seconds

_COLUMNS, _LINES = 64, 12  # of the curve in a terminal
_ROOM = 0.15  # above the first loss: what rises farther has diverged, and is cut
_SHOWN = 8
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 400, 70, 24, 40, 48
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.grid{stroke:#8883}.test{stroke:#2563eb;stroke-opacity:.3;fill:none}"
    ".mean{stroke:#2563eb;stroke-width:2;fill:none}.range{fill:#c2410c;fill-opacity:.12}.rate{stroke:#c2410c;stroke-width:2}"
    ".name{fill:#c2410c}@media(prefers-color-scheme:dark){text{fill:#ddd}.test,.mean{stroke:#60a5fa}.rate{stroke:#fb923c}"
    ".name,.range{fill:#fb923c}}"
)


@dataclass(frozen=True)
class TriedRate:
    """`loss`: mean over `seeds` trainings of `steps` steps; None: it diverged."""

    rate: float
    steps: int
    seeds: int
    loss: float | None


@dataclass(frozen=True)
class FoundRate:
    """`lr` is None if no rate is stable; `why` gives the reason in any case.

    `rates` and `losses`: the mean curve of the range tests; `tests`: the curve of each. `held_out`: whether losses in `tried`
    are those of held-out rows, else of the last training steps. `warning`: why the output may not be what the loss expects.
    """

    lr: float | None
    low: float | None
    high: float | None
    why: str
    steepest: float | None
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    tests: tuple[tuple[float, ...], ...]
    diverged_at: tuple[float | None, ...]
    tried: tuple[TriedRate, ...]
    held_out: bool
    total_steps: int | None
    steps: int
    seconds: float
    warning: str | None = None

    @property
    def rate(self) -> float:
        """Raises TrainingError if there is none."""
        if self.lr is None:
            raise TrainingError(f"no learning rate found: {self.why}")
        return self.lr

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> FoundRate:
        check_kinds(cls, written)
        known = dict(written)
        for name in ("rates", "losses", "diverged_at"):
            known[name] = tuple(written[name])
        known["tests"] = tuple(tuple(curve) for curve in written["tests"])
        known["tried"] = tuple(TriedRate(**one) for one in written["tried"])
        return cls(**known)

    def __repr__(self) -> str:
        return f"<FoundRate {'none' if self.lr is None else f'{self.lr:.2g}'}: {self.why}>"

    def explain(self) -> str:
        """The curve and the reason, as `flatout find-lr` prints them."""
        return to_text(found_doc(self))


def found_doc(found: FoundRate) -> Doc:
    nodes: list[Node] = [TextLine(headline(found), strong=True), TextLine(f"  {found.why}")]
    if found.warning is not None:
        nodes.append(TextLine(f"  warning: {found.warning}"))
    nodes += [*_curve(found), *_tried(found)]
    cost = f"{found.steps} steps in {show_seconds(found.seconds)}"
    length = "" if found.total_steps is None else f"; the training itself has {found.total_steps}"
    nodes += [TextLine(), TextLine(f"searched with {cost}{length}")]
    if len(found.rates) > 1:
        nodes.append(Picture(draw(found), "The loss while the rate rises: each test, their mean, and the chosen range."))
    written = found.to_dict()
    written["tried"] = None  # the table has them
    return Doc((*nodes, Fields({name: value for name, value in written.items() if value is not None or name != "tried"})))


def headline(found: FoundRate) -> str:
    if found.lr is None:
        return "no learning rate found"
    as_good = "" if found.low == found.high else f"; as good: {found.low:.2g} to {found.high:.2g}"
    return f"lr: {found.lr:.2g}{as_good}"


def _tried(found: FoundRate) -> list[Node]:
    """The longest trainings, by rate."""
    if not found.tried:
        return []
    longest = max(one.steps for one in found.tried)
    ordered = sorted(found.tried, key=lambda one: (-one.steps, one.rate))
    rows = [_row(one) for one in ordered]
    shown = [row for row, one in zip(rows, ordered, strict=True) if one.steps == longest][:_SHOWN]
    columns = (
        TableColumn("rate", "rate", right=True),
        TableColumn("loss", "held-out loss" if found.held_out else "loss at the end", right=True),
        TableColumn("steps", "steps", right=True),
        TableColumn("seeds", "orders of rows", right=True),
    )
    folded = [row for row in rows if row not in shown]
    return [TextLine(), Table("tried", columns, shown, fold=folded, fold_note="more, shorter; --json has them")]


def _row(one: TriedRate) -> dict[str, object]:
    loss = Cell(one.loss, "diverged" if one.loss is None else show_metric(one.loss))
    return {"rate": Cell(one.rate, f"{one.rate:.2g}"), "loss": loss, "steps": one.steps, "seeds": one.seeds}


def _levels(losses: Sequence[float]) -> tuple[float, float]:
    low, first = min(losses), max(losses[: len(losses) // 4 + 1])
    high = min(max(losses), first + _ROOM * (first - low)) if first > low else max(losses)
    return low, high if high > low else low + max(1e-12, abs(low))


def _curve(found: FoundRate) -> list[Node]:
    if len(found.rates) < 2 or not all(map(math.isfinite, found.losses)):
        return []
    (low, high), powers = _levels(found.losses), [math.log10(rate) for rate in found.rates]
    canvas = [[" "] * _COLUMNS for _ in range(_LINES)]
    for power, loss in zip(powers, found.losses, strict=True):
        column = round((power - powers[0]) / (powers[-1] - powers[0]) * (_COLUMNS - 1))
        line = round((high - min(loss, high)) / (high - low) * (_LINES - 1))
        canvas[line][column] = "*"
    for rate, mark in ((found.lr, "|"), (found.low, ":"), (found.high, ":")):
        if rate is not None and found.rates[0] <= rate <= found.rates[-1]:
            column = round((math.log10(rate) - powers[0]) / (powers[-1] - powers[0]) * (_COLUMNS - 1))
            for cells in canvas:
                cells[column] = mark if cells[column] == " " else cells[column]
    lines = ["".join(line).rstrip() for line in canvas]
    labels = {0: show_metric(high), _LINES - 1: show_metric(low)}
    width = max(map(len, labels.values()))
    start, end = f"{found.rates[0]:.0e}", f"{found.rates[-1]:.2g}"
    scale = f"{start}{end:>{_COLUMNS - len(start)}}"
    drawn = [TextLine(f"  {labels.get(place, ''):>{width}} {line}") for place, line in enumerate(lines)]
    return [TextLine(), *drawn, TextLine(f"  {'':{width}} {scale}"), TextLine(f"  {'loss':>{width}} while the rate rises")]


def draw(found: FoundRate) -> str:
    """SVG."""
    low, high = _levels(found.losses)
    powers = [math.log10(rate) for rate in found.rates]
    parts = [*_grid(powers, low, high), *_chosen(found, powers)]
    for losses, kind in [*((test, "test") for test in found.tests), (found.losses, "mean")]:
        pairs = zip(powers, losses, strict=False)  # a test that diverged later than the others goes on
        points = " ".join(f"{_x(power, powers):.1f},{_y(loss, low, high):.1f}" for power, loss in pairs if math.isfinite(loss))
        parts.append(f'<polyline class="{kind}" points="{points}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'role="img"><title>Loss by learning rate</title><style>{_STYLE}</style>{"".join(parts)}</svg>'
    )


def _x(power: float, powers: Sequence[float]) -> float:
    return _LEFT + (power - powers[0]) / (powers[-1] - powers[0]) * (_WIDTH - _LEFT - _RIGHT)


def _y(loss: float, low: float, high: float) -> float:
    part = (min(loss, high) - low) / (high - low)
    return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _grid(powers: Sequence[float], low: float, high: float) -> list[str]:
    bottom, parts = _HEIGHT - _BOTTOM, []
    for power in range(math.ceil(powers[0]), math.floor(powers[-1]) + 1):
        x = _x(power, powers)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:g}</text>')
    for part in range(5):
        loss = low + (high - low) * part / 4
        y = _y(loss, low, high)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(show_metric(loss))}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">learning rate</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{_TOP - 20}" text-anchor="end">loss</text>')
    return parts


def _chosen(found: FoundRate, powers: Sequence[float]) -> list[str]:
    if found.lr is None or found.low is None or found.high is None:
        return []

    def place(rate: float) -> float:
        return min(max(_x(math.log10(rate), powers), _LEFT), _WIDTH - _RIGHT)

    left, right, x, bottom = place(found.low), place(found.high), place(found.lr), _HEIGHT - _BOTTOM
    return [
        f'<rect class="range" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{bottom - _TOP}"/>',
        f'<line class="rate" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>',
        f'<text class="name" x="{x:.1f}" y="{_TOP - 8}" text-anchor="middle">{found.lr:.2g}</text>',
    ]
