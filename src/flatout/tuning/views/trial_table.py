"""The table of trials, at most 100 columns wide. With many parameters, a row is a parameter and a column a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.base.tree import Cell, Node, Table, TableColumn
from flatout.base.units import show_metric
from flatout.tuning.views.history import FAILED, StudyHistory, TrialLine
from flatout.tuning.views.words import COLUMNS, short_keys, shortened, value_text

_SHOWN = 8  # trials, best first
_VALUE, _KEY = 16, 30  # widths in the table of few trials
_APART = 2
_FOLDED = 200  # more on the page, which stays small


def trial_tables(history: StudyHistory) -> list[Node]:
    """For people; the JSON has the trials with all their scores."""
    keys = list(dict.fromkeys(key for trial in history.trials for key in trial.point))
    table = _upright(history, keys)
    if _width(table) <= COLUMNS:
        return [replace(table, fold=()), *_rest(table.columns, table.fold)]
    shown = [row for row in history.best_first[:_SHOWN] if row.score is not None] or history.best_first[:1]
    while len(shown) > 1 and _width(found := _lying(history, keys, shown)) > COLUMNS:
        shown = shown[:-1]
    found = _lying(history, keys, shown)
    return [found, *_rest(table.columns, [*table.rows, *table.fold][len(shown) :])]


def _upright(history: StudyHistory, keys: Sequence[str]) -> Table:
    names = short_keys(keys)
    columns = (
        TableColumn("number", "trial", right=True),
        TableColumn("score", history.metric, right=True),
        TableColumn("steps", "steps", right=True),
        *(TableColumn(f"point.{key}", names[key], right=True) for key in keys),
    )
    rows = [_row(history, trial) for trial in history.best_first]
    return Table("trials", columns, rows[:_SHOWN], rows[_SHOWN:], in_json=False)


def _rest(columns: Sequence[TableColumn], rows: Sequence[Mapping[str, Any]]) -> list[Node]:
    if not rows:
        return []
    left_out = len(rows) - _FOLDED
    note = f"more trials, and {left_out:,} others; --json has all" if left_out > 0 else "more trials; --json has all"
    return [Table("rest", columns, (), rows[:_FOLDED], note, in_json=False)]


def _row(history: StudyHistory, trial: TrialLine) -> dict[str, Any]:
    values = {f"point.{key}": Cell(value, value_text(value)) for key, value in trial.point.items()}
    return {"number": trial.number, "score": _score(history, trial), "steps": trial.step, **values}


def _score(history: StudyHistory, trial: TrialLine) -> str:
    return FAILED if trial.score is None else show_metric(trial.score)


def _lying(history: StudyHistory, keys: Sequence[str], trials: Sequence[TrialLine]) -> Table:
    names = short_keys(keys)
    columns = (TableColumn("name", "trial"), *(TableColumn(str(one.number), str(one.number), right=True) for one in trials))
    rows: list[Mapping[str, Any]] = [
        {"name": history.metric, **{str(one.number): _score(history, one) for one in trials}},
        {"name": "steps", **{str(one.number): one.step for one in trials}},
    ]
    for key in keys:
        having = {str(one.number): value_text(one.point[key], _VALUE) for one in trials if key in one.point}
        rows.append({"name": shortened(names[key], _KEY), **having})
    return Table("trials", columns, rows, in_json=False)


def _width(table: Table) -> int:
    """Of its text."""
    widths = [
        max(len(column.title), *(len(_text(row.get(column.key))) for row in table.rows), 0) if table.rows else 0
        for column in table.columns
    ]
    return sum(widths) + _APART * (len(widths) - 1)


def _text(value: Any) -> str:
    return value.text if isinstance(value, Cell) else "" if value is None else str(value)
