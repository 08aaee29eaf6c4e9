"""A survey as one tree: the data, where it would be stored, the speed of each stage, and advice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_count, show_rate, show_seconds
from flatout.explore.guard.view import finding_nodes, suggestion_nodes
from flatout.explore.survey.advice import words_of
from flatout.explore.survey.columns import ColumnWords, LabelWords
from flatout.explore.survey.speeds import StageRow, rows_of, slowest
from flatout.explore.survey.survey import Survey

_WIDTH = 100
_SHOWN_COLUMNS = 20
_LONGEST_NAME = 28
_SHOWN_CLASSES = 8


def doc(found: Survey) -> Doc:
    return Doc(
        (
            *_headline(found),
            Fields({"name": found.name, "machine": found.machine}),
            TextLine(),
            _parts(found),
            TextLine(),
            *_size(found),
            TextLine(),
            _columns(found.columns),
            TextLine(),
            *_label(found.label),
            *_wrapped("steps", ", then ".join(step for step in found.steps if step != "table")),
            Fields({"steps": list(found.steps), "schema": found.data.get("columns")}),
            *finding_nodes(found.findings),
            *suggestion_nodes(found.suggested),
            *_tier(found),
            TextLine(),
            _stages(found),
            *_said(found),
        )
    )


def _headline(found: Survey) -> Iterator[TextLine]:
    speeds = found.speeds
    row = slowest(speeds)
    bound = f" · slowest stage: {row.name}" if row is not None else ""
    what, how_fast = (
        f"Data of {found.name} on {found.machine}",
        f"{show_rate(speeds.stages.loading.rows_per_s, speeds.unit)}{bound}",
    )
    whole = f"{what} · {how_fast}"
    for line in [whole] if len(whole) <= _WIDTH else [what, how_fast]:
        yield TextLine(line, strong=True)


def _parts(found: Survey) -> Table:
    columns = (
        TableColumn("name", "part"),
        TableColumn("rows", found.speeds.unit, right=True),
        TableColumn("bytes", "in memory", right=True),
    )
    rows = [
        {
            "name": part.name,
            "rows": Cell(part.rows, "unknown" if part.rows is None else f"{part.rows:,}"),
            "bytes": Cell(part.stored_bytes, "" if part.stored_bytes is None else show_bytes(part.stored_bytes)),
        }
        for part in found.parts
    ]
    return Table("parts", columns, rows)


def _size(found: Survey) -> Iterator[Node]:
    speeds = found.speeds
    yield Fields({"files": found.files, "file_bytes": speeds.file_bytes, "opening_s": speeds.opening_s})
    on_disk = ""
    if found.files is not None and speeds.file_bytes is not None:
        on_disk = f"{show_bytes(speeds.file_bytes)} in {found.files:,} file{'' if found.files == 1 else 's'} on disk; "
    yield from _wrapped("files", f"{on_disk}read and prepared in {show_seconds(speeds.opening_s)}")


def _columns(columns: tuple[ColumnWords, ...]) -> Table:
    shapes = (
        TableColumn("name", "column"),
        TableColumn("kind", "kind"),
        TableColumn("missing", "missing", right=True, shown=any(column.missing for column in columns)),
        TableColumn("what", "what is made of it"),
    )
    names = [_cut(column.name, _LONGEST_NAME) for column in columns]
    taken = max(map(len, ["column", *names])) + max(len(column.kind) for column in columns) + len("missing") + 6
    rows = [
        {
            "name": Cell(c.name, name),
            "kind": c.kind,
            "missing": _share(c.missing),
            "what": Cell(c.what, _cut(c.what, _WIDTH - taken)),
        }
        for c, name in zip(columns, names, strict=True)
    ]
    return Table("columns", shapes, rows[:_SHOWN_COLUMNS], fold=rows[_SHOWN_COLUMNS:], fold_note="more columns; --json has all")


def _share(missing: float | None) -> Cell:
    return Cell(missing, "" if not missing else f"{missing:.1%}" if missing >= 0.001 else "<0.1%")


def _label(label: LabelWords | None) -> Iterator[Node]:
    if label is None:
        yield Fields({"label": None})
        return
    yield Fields({"label": {"name": label.name, "classes": dict(label.classes), "low": label.low, "high": label.high}})
    if not label.classes:
        yield from _wrapped("label", f"{label.name}: a number, {label.low:.4g} to {label.high:.4g}")
        return
    classes = sorted(label.classes, key=lambda pair: -pair[1])
    shown = ", ".join(f"{name} {share:.1%}" for name, share in classes[:_SHOWN_CLASSES])
    more = f", {len(classes) - _SHOWN_CLASSES} more down to {classes[-1][1]:.2%}" if len(classes) > _SHOWN_CLASSES else ""
    yield from _wrapped("label", f"{label.name}, {len(classes)} classes: {shown}{more}")


def _tier(found: Survey) -> Iterator[Node]:
    tier = found.tier
    rejected = [{"value": r.value, "why": r.why} for r in found.rejected]
    yield Fields({"tier": {"value": tier.value, "why": tier.why, "source": tier.source, "rejected": rejected}})
    yield from _wrapped("tier", f"{tier.value}: {tier.why}")
    for one in found.rejected:
        yield from _wrapped("", f"not {one.value}: {one.why}")
    written = found.compression
    yield Fields({"cache_compression": None if written is None else {"value": written.value, "why": written.why}})
    if written is not None:
        yield from _wrapped("", f"compression {written.value}: {written.why}")


def _stages(found: Survey) -> Table:
    speeds, loading = found.speeds, found.speeds.stages.loading
    rows = [_stage(row, speeds.unit) for row in rows_of(speeds)]
    threads = f", {loading.workers} reading thread{'' if loading.workers == 1 else 's'}" if loading.workers else ""
    whole = StageRow("loader", f"all of it, tier {loading.tier}{threads}", loading.rows_per_s)
    rows.append(_stage(whole, speeds.unit))
    if speeds.kept and (later := speeds.later_rows_per_s) is not None:
        rows.append(_stage(StageRow("later", "the loader, from the second epoch on", later), speeds.unit))
    if speeds.wanted_rows_per_s is not None:
        rows.append(_stage(StageRow("training", "what it takes at most, as planned", speeds.wanted_rows_per_s), speeds.unit))
    columns = (
        TableColumn("stage", "stage"),
        TableColumn("words", "what it does"),
        TableColumn("rows_per_s", "rate", right=True),
        TableColumn("ceiling", "ceiling", right=True),
        TableColumn("ceiling_of", "", shown=False),
        TableColumn("threads", "", shown=False),
    )
    return Table("stages", columns, rows)


def _stage(row: StageRow, unit: str) -> dict[str, Any]:
    ceiling = "" if row.ceiling_rows_per_s is None else f"{show_count(row.ceiling_rows_per_s)} ({row.ceiling})"
    return {
        "stage": row.name,
        "words": Cell(row.words, _cut(row.words, 56)),
        "rows_per_s": Cell(row.rows_per_s, show_rate(row.rows_per_s, unit)),
        "ceiling": Cell(row.ceiling_rows_per_s, ceiling),
        "ceiling_of": row.ceiling or None,
        "threads": row.at_once,
    }


def _said(found: Survey) -> Iterator[Node]:
    row, words = slowest(found.speeds), words_of(found.speeds)
    yield Fields({"slowest": None if row is None else row.name, "advice": words, "notes": list(found.notes)})
    yield Fields({"later_rows_per_s": found.speeds.later_rows_per_s, "no_plan": found.no_plan})
    if words:
        yield TextLine()
    for sentence in words:
        yield from _wrapped(None, sentence)
    if found.notes:
        yield TextLine()
    for note in found.notes:
        yield from _wrapped("note", note)


def _wrapped(name: str | None, words: str) -> Iterator[TextLine]:
    """With a name in the margin; None: no margin."""
    if not words:
        return
    margin = "" if name is None else f"{name:<8}"
    for line in textwrap.wrap(words, _WIDTH, initial_indent=margin, subsequent_indent=" " * len(margin)):
        yield TextLine(line)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
