"""The layers of a model, and how they are shown: one tree, folded below a depth, all of them in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine, to_text
from flatout.base.units import show_bytes, show_count, show_seconds, show_share

_LISTS = ("ModuleList", "ModuleDict")  # which are never called themselves


@dataclass(frozen=True)
class LayerRow:
    """`depth` 0 is the whole model. Figures include the layers inside; `share` of a step's time is None if it was not measured.

    `activation_bytes`: kept for the backward pass. `calls`: 0 if a step does not call it.
    """

    name: str
    kind: str
    depth: int
    outputs: tuple[tuple[int, ...], ...]
    parameters: int
    trained: int
    flops: int
    activation_bytes: int
    share: float | None
    calls: int


@dataclass(frozen=True)
class ModelSummary:
    """`flops`: forward and backward; in `layers` the forward alone. `step_s`: forward and backward; None: not measured."""

    layers: tuple[LayerRow, ...]
    rows: int
    parameters: int
    trained: int
    flops: int
    activation_bytes: int
    step_s: float | None
    device: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def explain(self, depth: int = 2) -> str:
        """As `flatout summary` prints it."""
        return to_text(summary_doc(self, depth))


def summary_doc(found: ModelSummary, depth: int = 2) -> Doc:
    rows = [(one, _cells(one)) for one in found.layers]
    shown = [cells for one, cells in rows if one.depth <= depth]
    folded = [cells for one, cells in rows if one.depth > depth]
    frozen = found.parameters - found.trained
    parts = [
        f"{show_count(found.parameters)} parameters" + (f", {show_count(frozen)} of them frozen" if frozen else ""),
        f"{show_count(found.flops)} FLOP per step",
        f"{show_bytes(found.activation_bytes)} kept for the backward",
    ]
    if found.step_s is not None:
        parts.append(f"{show_seconds(found.step_s)} for forward and backward on {found.device}")
    timed = found.step_s is not None
    columns = (
        TableColumn("name", "layer"), TableColumn("kind", "kind"), TableColumn("outputs", "output"),
        TableColumn("parameters", "parameters", right=True), TableColumn("trained", "trained"),
        TableColumn("flops", "FLOP forward", right=True), TableColumn("activation_bytes", "kept", right=True),
        TableColumn("share", "share of time", right=True, shown=timed), TableColumn("calls", "calls", right=True, shown=False),
        TableColumn("depth", "depth", shown=False),
    )  # fmt: skip
    note = f"more inside; --depth {max((one.depth for one in found.layers), default=0)} shows all"
    totals = {name: value for name, value in found.to_dict().items() if name != "layers"}
    return Doc(
        (
            Table("layers", columns, shown, fold=folded, fold_note=note),
            TextLine(),
            TextLine(f"a batch of {found.rows} rows: {' · '.join(parts)}"),
            Fields(totals),
        )
    )


def _cells(one: LayerRow) -> dict[str, Any]:
    label = "  " * one.depth + one.name.rpartition(".")[2] + (f" x{one.calls}" if one.calls > 1 else "")
    shapes = " ".join(f"[{', '.join(map(str, shape))}]" for shape in one.outputs[:2])
    state = "" if not one.parameters else "yes" if one.trained == one.parameters else "partly" if one.trained else "frozen"
    return {
        "name": Cell(one.name, label),
        "kind": one.kind,
        "outputs": Cell([list(shape) for shape in one.outputs], shapes if one.calls or one.kind in _LISTS else "not called"),
        "parameters": Cell(one.parameters, show_count(one.parameters) if one.parameters else ""),
        "trained": Cell(one.trained, state),
        "flops": Cell(one.flops, show_count(one.flops) if one.flops else ""),
        "activation_bytes": Cell(one.activation_bytes, show_bytes(one.activation_bytes) if one.activation_bytes else ""),
        "share": Cell(one.share, "" if one.share is None else show_share(one.share)),
        "calls": one.calls,
        "depth": one.depth,
    }
