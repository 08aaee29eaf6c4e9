"""The answer of `overfit` as one tree."""

from __future__ import annotations

from flatout.base.tree import Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_metric, show_seconds
from flatout.runs.one_batch.overfit import OneBatch

_COLUMNS = (TableColumn("part", "part"), TableColumn("what", "what"), TableColumn("remedy", "what to do"))


def one_batch_doc(found: OneBatch) -> Doc:
    change = f"loss {show_metric(found.first_loss)} to {show_metric(found.loss)}"
    lowest = f", the lowest possible is {show_metric(found.floor)}" if found.floor else ""
    how = f"{found.steps} steps in {show_seconds(found.seconds)}, lr {found.lr:.2g}, no dropout, augmentation or weight decay"
    headline = f"learned one batch of {found.rows} rows" if found.learned else f"did not learn one batch of {found.rows} rows"
    lines = [TextLine(f"{headline}: {change}{lowest}", strong=True), TextLine(f"  {how}")]
    if found.warning is not None:
        lines.append(TextLine(f"  warning: {found.warning}"))
    elif not found.learned and not found.stuck:
        lines.append(
            TextLine(
                "  every part gets a gradient. Is the model large enough for the batch, are its inputs normalized, does the "
                "loss fit the labels?"
            )
        )
    rows = [{"part": one.part, "what": one.what, "remedy": one.remedy} for one in found.stuck]
    table = [TextLine(), Table("stuck", _COLUMNS, rows)] if rows else [Table("stuck", _COLUMNS, ())]
    written = {name: value for name, value in found.to_dict().items() if name != "stuck"}
    return Doc((*lines, *table, Fields(written)))
