"""What there is to say about the table of a recipe, as the recipe reads and splits it: faults, and columns worth a try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError
from flatout.data.sources.tables.scan import scan
from flatout.data.specs import READING
from flatout.explore.drafting.columns import SampledColumn, seen
from flatout.explore.drafting.guarded import settle
from flatout.explore.drafting.labels import target_of
from flatout.explore.drafting.sample import first_rows
from flatout.explore.guard.derivable import ColumnSuggestion, suggest_columns
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.guard import guard_table, switched_on
from flatout.explore.guard.look import HeldFile, TableLook


@dataclass(frozen=True)
class TableReport:
    """`unlooked`: why the table can't be looked at; training says more about that."""

    findings: tuple[GuardFinding, ...] = ()
    suggested: tuple[ColumnSuggestion, ...] = ()
    unlooked: str | None = None


def report_of(written: Any, folder: Path, *, suggest: bool = False) -> TableReport:
    """`written` is the data of a recipe; about other data than a table of files nothing is said.

    Columns that the recipe leaves out are not looked at, and those that have steps are not told to get some. `suggest`: also
    derived columns, for a recipe that has none.
    """
    if not isinstance(written, Mapping) or "table" not in written or not (on := switched_on(written.get("guard"))):
        return TableReport()
    try:
        look = _look(written, folder)
        found = guard_table(look, on)
        suggested = suggest_columns(look, _inputs(look, found, written)) if suggest and not written.get("derive") else []
    except (FlatoutError, KeyError) as error:
        return TableReport(unlooked=str(error))
    stepped = written.get("steps") or {}
    told = [one for one in found if not ("steps" in one.change and one.column in stepped)]
    return TableReport(tuple(told), tuple(suggested))


def _look(written: Mapping[str, Any], folder: Path) -> TableLook:
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
    return TableLook(columns, label, target_of(label) if target == "auto" else target, whole, by_hash, held)


def _inputs(look: TableLook, found: Sequence[GuardFinding], written: Mapping[str, Any]) -> list[SampledColumn]:
    """What a model should learn from: not from columns that tell the label."""
    taken = {look.label.name, *settle(found, look.random_holdout).drop}
    chosen = _names(written.get("columns")) or list(look.columns)
    return [look.columns[name] for name in chosen if name not in taken and look.columns[name].kind != "nested"]


def _columns(paths: Any, folder: Path, options: Mapping[str, Any]) -> tuple[dict[str, SampledColumn], bool]:
    """The columns by the first rows, and whether these are all rows."""
    found = scan(paths, base_folder=folder, **{**options, "on_bad": "skip"})
    columns = {name: seen(name, values) for name, values in first_rows(found).items()}
    return columns, found.rows == next(iter(columns.values())).rows


def _names(given: Any) -> list[str]:
    return [] if given is None else [given] if isinstance(given, str) else list(given)
