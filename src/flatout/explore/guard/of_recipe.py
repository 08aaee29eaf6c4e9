"""The findings about the table of a recipe, as the recipe reads and splits it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError
from flatout.data.sources.tables.scan import scan
from flatout.data.specs import READING
from flatout.explore.drafting.columns import SampledColumn, seen
from flatout.explore.drafting.labels import target_of
from flatout.explore.drafting.sample import first_rows
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.guard import guard_table, switched_on
from flatout.explore.guard.look import HeldFile, TableLook


def findings_of(written: Any, folder: Path) -> list[GuardFinding]:
    """`written` is the data of a recipe; other data than a table of files has no findings.

    Columns that the recipe leaves out are not looked at, and those that have steps are not told to get some.
    """
    if not isinstance(written, Mapping) or "table" not in written:
        return []
    on = switched_on(written.get("guard"))
    if not on:
        return []
    options = {name: value for name, value in written.items() if name in READING}
    columns, whole = _columns(written["table"], folder, options)
    columns = {name: column for name, column in columns.items() if name not in _names(written.get("drop"))}
    label = columns[written["label"]]
    target = written.get("target", "auto")
    by_hash = bool(written.get("holdout")) and not (written.get("holdout_latest") or written.get("holdout_group"))
    held = []
    for part in ("validation", "test"):
        if written.get(part) is not None:
            held.append(HeldFile(part, _columns(written[part], folder, options)[0]))
    look = TableLook(columns, label, target_of(label) if target == "auto" else target, whole, by_hash, held)
    stepped = written.get("steps") or {}
    return [one for one in guard_table(look, on) if not ("steps" in one.change and one.column in stepped)]


def _columns(paths: Any, folder: Path, options: Mapping[str, Any]) -> tuple[dict[str, SampledColumn], bool]:
    """The columns by the first rows, and whether these are all rows."""
    found = scan(paths, base_folder=folder, **{**options, "on_bad": "skip"})
    columns = {name: seen(name, values) for name, values in first_rows(found).items()}
    return columns, found.rows == next(iter(columns.values())).rows


def _names(given: Any) -> list[str]:
    return [] if given is None else [given] if isinstance(given, str) else list(given)


def findings_or_reason(written: Any, folder: Path) -> tuple[list[GuardFinding], str | None]:
    """Without findings, and with the reason, if the table can't be looked at: training says more about that."""
    try:
        return findings_of(written, folder), None
    except (FlatoutError, KeyError) as error:
        return [], str(error)
