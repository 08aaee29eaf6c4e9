"""What a pipeline did, or would do, for a terminal and as JSON."""

from __future__ import annotations

from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_seconds
from flatout.pipelines.stages.outcomes import MADE_NOW, RESTORED, UNCHANGED, PipelineOutcome, StageOutcome

_WIDEST = 70


def outcome_doc(outcome: PipelineOutcome) -> Doc:
    stages = list(outcome.stages.values())
    rows = [_row(one) for one in stages if one.status != UNCHANGED or one.verdict]
    unchanged = [_row(one) for one in stages if one.status == UNCHANGED and not one.verdict]
    columns = (
        TableColumn("stage", "stage"), TableColumn("kind", "kind"), TableColumn("did", ""), TableColumn("why", "why"),
        TableColumn("words", "result"),
    )  # fmt: skip
    fields = {"exit_code": outcome.exit_code, "seconds": round(outcome.seconds, 3), "notes": list(outcome.notes)}
    return Doc(
        (
            Fields(fields),
            Table("stages", columns, rows, fold=unchanged, fold_note="unchanged"),
            *(TextLine(f"note: {note}") for note in outcome.notes),
            TextLine(_sum_line(outcome), strong=True),
        )
    )


def _row(one: StageOutcome) -> dict[str, Any]:
    words = one.words or (one.record.words if one.record is not None else "")
    return {
        "stage": one.stage, "kind": one.kind, "did": Cell(one.status, one.shown),
        "why": Cell(list(one.why), short_line(", ".join(one.why))),
        "words": Cell(words, short_line(words)),
    }  # fmt: skip


def _sum_line(outcome: PipelineOutcome) -> str:
    counts: dict[str, int] = {}
    for one in outcome.stages.values():
        counts[one.status] = counts.get(one.status, 0) + 1
    told = ", ".join(
        f"{counts[status]} {status}" for status in (MADE_NOW, RESTORED, "failed", "not run", UNCHANGED) if status in counts
    )
    line = f"{len(outcome.stages)} {'stages' if len(outcome.stages) > 1 else 'stage'}: {told} · {show_seconds(outcome.seconds)}"
    work_s, wall_s = outcome.together
    if work_s > 1.05 * wall_s:
        line += f" · side by side: {show_seconds(work_s)} of work in {show_seconds(wall_s)}"
    return line


def short_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."
