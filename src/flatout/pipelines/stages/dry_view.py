"""What a pipeline would do, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_energy, show_seconds
from flatout.pipelines.stages.dry import Would
from flatout.pipelines.stages.views import short_line


def dry_doc(would: Sequence[Would], price_per_hour: float | None) -> Doc:
    rows = [_would_row(one, price_per_hour) for one in would if one.why]
    unchanged = [_would_row(one, price_per_hour) for one in would if not one.why]
    columns = (
        TableColumn("stage", "stage"), TableColumn("kind", "kind"), TableColumn("would", "would"), TableColumn("why", "why"),
        TableColumn("seconds", "time", right=True), TableColumn("joules", "energy", right=True),
        TableColumn("usd", "USD", right=True, shown=price_per_hour is not None), TableColumn("from", "predicted from"),
        TableColumn("fallbacks", "", shown=False),
    )  # fmt: skip
    notes = list(dict.fromkeys(f"{one.stage.name}: {note}" for one in would for note in one.fallbacks))
    return Doc(
        (
            Table("stages", columns, rows, fold=unchanged, fold_note="unchanged"),
            *(TextLine(f"note: {note}") for note in notes),
            TextLine(_dry_sum(would, price_per_hour), strong=True),
            Fields({"notes": notes, "seconds": _total(would)}),
        )
    )


def _would_row(one: Would, price: float | None) -> dict[str, Any]:
    does = "nothing" if not one.why else "be restored" if one.is_kept else "run" if one.certain else "run if that differs"
    seconds, joules = one.forecast.seconds, one.forecast.joules
    usd = None if price is None or seconds is None else price * seconds / 3600
    return {
        "stage": one.stage.name, "kind": one.stage.kind, "would": does,
        "why": Cell(list(one.why), short_line(", ".join(one.why))),
        "seconds": Cell(seconds, "unknown" if seconds is None else show_seconds(seconds) if seconds else "0 s"),
        "joules": Cell(joules, "unavailable" if joules is None else show_energy(joules)),
        "usd": Cell(usd, "" if usd is None else f"{usd:.2g}"), "from": one.forecast.words, "fallbacks": list(one.fallbacks),
    }  # fmt: skip


def _total(would: Sequence[Would]) -> float | None:
    found = [one.forecast.seconds for one in would if one.why]
    return None if any(one is None for one in found) else sum(one for one in found if one is not None)


def _dry_sum(would: Sequence[Would], price: float | None) -> str:
    runs = [one for one in would if one.why]
    if not runs:
        return f"nothing changed: {len(would)} stages would stay as they are"
    known = sum(one.forecast.seconds or 0.0 for one in runs)
    unknown = sum(one.forecast.seconds is None for one in runs)
    line = f"{len(runs)} of {len(would)} stages would run: {show_seconds(known) if known else 'unknown time'}"
    line += f", and {unknown} that never ran here" if unknown and known else ""
    return line + (f", {price * known / 3600:.2g} USD" if price is not None and known else "")
