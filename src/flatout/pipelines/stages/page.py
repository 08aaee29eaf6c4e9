"""What a pipeline did, as a page: the result of each stage, when it ran, what it took, and why it ran."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flatout.base.svg import bar, line, linear, picture, text
from flatout.base.tree import Cell, Code, Doc, Figure, Figures, Node, Picture, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_energy, show_seconds
from flatout.pipelines.stages.outcomes import FAILED, MADE_NOW, PipelineOutcome, StageOutcome

_WIDTH, _ROW, _BAR, _LEFT, _RIGHT, _TOP = 900.0, 26.0, 16.0, 150.0, 110.0, 34.0
_LETTERS = 18  # of a stage's name, beside its bar
_NOW, _BEFORE, _WRONG = "p0", "p5", "p1"


def outcome_page(outcome: PipelineOutcome) -> Doc:
    stages = list(outcome.stages.values())
    nodes: list[Node] = [Figures(list(_figures(outcome, stages)))]
    nodes += [TextLine(f"note: {note}") for note in outcome.notes]
    if (drawn := _picture(stages)) is not None:
        nodes.append(drawn)
    nodes.append(_table(stages))
    for one in stages:
        nodes += _details(one)
    return Doc(tuple(nodes))


def _figures(outcome: PipelineOutcome, stages: Sequence[StageOutcome]) -> Iterator[Figure]:
    words = {0: "all is done", 1: "a stage failed, or a gate says fail", 3: "a gate has no verdict"}[outcome.exit_code]
    counts = {one.status: sum(other.status == one.status for other in stages) for one in stages}
    yield Figure("pipeline", words, ", ".join(f"{count} {status}" for status, count in counts.items()))
    yield Figure("this call", show_seconds(outcome.seconds))
    records = [one.record for one in stages if one.record is not None]
    yield Figure("work behind these results", show_seconds(sum(one.seconds for one in records)), "when each was last made")
    joules = [one.joules for one in records if one.joules is not None]
    if joules:
        yield Figure("energy behind them", show_energy(sum(joules)), f"of {len(joules)} of {len(records)} stages")


def _picture(stages: Sequence[StageOutcome]) -> Picture | None:
    """Stages of this call stand where they began; the time of others is drawn from the start."""
    known = [(one, one.record) for one in stages if one.record is not None and one.record.seconds > 0]
    if not known:
        return None
    now = [record for one, record in known if one.status in (MADE_NOW, FAILED)]
    began = min((record.at for record in now), default=0.0)
    starts = [record.at - began if record in now else 0.0 for _, record in known]
    last = max(start + record.seconds for start, (_, record) in zip(starts, known, strict=True))
    axis, width, height = linear(0.0, last), _WIDTH - _LEFT - _RIGHT, _TOP + _ROW * len(known) + 8
    parts = [line("grid", x := _LEFT + width * at, _TOP - 8, x, height - 4) for at, _ in axis.ticks]
    parts += [text(_LEFT + width * at, _TOP - 14, f"{label} s", "middle") for at, label in axis.ticks]
    for place, (start, (one, record)) in enumerate(zip(starts, known, strict=True)):
        y, left, right = _TOP + _ROW * place, _LEFT + width * axis.at(start), _LEFT + width * axis.at(start + record.seconds)
        kind = _WRONG if one.status == FAILED else _NOW if record in now else _BEFORE
        name = one.stage if len(one.stage) <= _LETTERS else f"{one.stage[: _LETTERS - 1]}…"
        parts += [text(_LEFT - 8, y + 13, name, "end"), bar(kind, left, y, max(right - left, 2.0), _BAR)]
        parts.append(text(right + 6, y + 13, show_seconds(record.seconds)))
    caption = "Blue: ran in this call, where it began. Teal: unchanged or restored; the time that it took when it was made."
    return Picture(picture("What each stage took", _WIDTH, height, parts), caption)


def _table(stages: Sequence[StageOutcome]) -> Table:
    is_metered = any(one.record is not None and one.record.joules is not None for one in stages)
    columns = (
        TableColumn("stage", "stage"), TableColumn("kind", "kind"), TableColumn("did", ""), TableColumn("result", "result"),
        TableColumn("seconds", "took", right=True), TableColumn("joules", "energy", right=True, shown=is_metered),
        TableColumn("memory", "memory", right=True), TableColumn("at", "made", right=True),
    )  # fmt: skip
    return Table("stages", columns, [_row(one) for one in stages])


def _row(one: StageOutcome) -> Mapping[str, Any]:
    record, unknown = one.record, Cell(None, "")
    words = one.words or ("" if record is None else record.words)
    told = words if not one.verdict or words.lower().startswith(one.verdict) else f"{one.verdict}: {words}"
    row: dict[str, Any] = {"stage": one.stage, "kind": one.kind, "did": one.status, "result": told}
    if record is None:
        return {**row, "seconds": unknown, "joules": unknown, "memory": unknown, "at": unknown}
    memory, at = record.memory_bytes, time.localtime(record.at)
    return {
        **row, "seconds": Cell(record.seconds, show_seconds(record.seconds)),
        "joules": Cell(record.joules, "" if record.joules is None else show_energy(record.joules)),
        "memory": Cell(memory, "" if memory is None else show_bytes(memory)),
        "at": Cell(record.at, time.strftime("%Y-%m-%d %H:%M", at) if record.at else ""),
    }  # fmt: skip


def _details(one: StageOutcome) -> Iterator[Node]:
    record = one.record
    if not (one.why or one.notes or (record is not None and record.command)):
        return
    yield TextLine(one.stage, strong=True)
    if one.why:
        yield TextLine(f"why it {'ran' if one.status == MADE_NOW else 'was due'}: {', '.join(one.why)}")
    yield from (TextLine(f"note: {note}") for note in one.notes)
    if record is not None and record.command:
        yield Code(record.command)
