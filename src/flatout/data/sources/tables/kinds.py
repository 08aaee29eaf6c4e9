"""Which columns are numbers, which categories and which dates: by what the user says, else by their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.data.sources.tables.arrow import is_date, is_nested, is_number
from flatout.data.sources.tables.steps import CATEGORY_STEPS, DATE_STEPS, NUMBER_STEPS, ColumnSteps

_STEPS_OF = {"number": NUMBER_STEPS, "category": CATEGORY_STEPS, "date": DATE_STEPS}


@dataclass(frozen=True)
class ColumnPlan:
    """One input column: "number", "category" or "date", and what is to be done to it."""

    name: str
    kind: str
    steps: ColumnSteps
    type: Any


def plan_columns(
    types: Mapping[str, Any],
    *,
    numeric: str | Sequence[str],
    categorical: str | Sequence[str],
    aside: Iterable[str],
    steps: Mapping[str, ColumnSteps],
    usual: ColumnSteps,
    notes: list[str],
) -> list[ColumnPlan]:
    """The inputs in the order of the table. `aside` are columns that are no inputs: the label, what is dropped.

    A list names every column of its kind; columns that neither takes are left out, which `notes` says.
    """
    aside = set(aside)
    numbers, categories = _names(numeric, "numeric"), _names(categorical, "categorical")
    for what, names in (("numeric", numbers or ()), ("categorical", categories or ()), ("steps", steps)):
        for name in names:
            check_column(name, types, what)
            if name in aside:
                raise UsageError(f"{what}: column {name!r} is no input: it is the label, dropped, or used for another purpose")
    both = sorted(set(numbers or ()) & set(categories or ()))
    if both:
        raise UsageError(f"column {both[0]!r} stands in both numeric and categorical: leave it in one of them")
    planned, left = [], []
    for name, kind in types.items():
        if name in aside:
            continue
        mine = steps.get(name, usual)
        found = _kind(name, kind, numbers, categories, mine)
        if found is None:
            left.append(name)
        else:
            _check_steps(name, found, mine)
            planned.append(ColumnPlan(name, found, mine, kind))
    if left:
        notes.append(f"left out, since neither numeric nor categorical names them: {listed(left)}")
    return planned


def check_column(name: str, types: Mapping[str, Any], what: str) -> None:
    if name not in types:
        raise DataError(f"{what}: the table has no column {name!r}; {did_you_mean(str(name), map(str, types))}")


def listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _names(given: str | Sequence[str], what: str) -> list[str] | None:
    if given == "auto":
        return None
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{what} is 'auto' or a list of columns, got {given!r}")
    return list(given)


def _kind(name: str, kind: Any, numbers: list[str] | None, categories: list[str] | None, steps: ColumnSteps) -> str | None:
    import pyarrow as pa

    by_steps = next((k for k, known in _STEPS_OF.items() if any(step in known for step in steps.named)), None)
    if name in (categories or ()) or (by_steps == "category" and name not in (numbers or ())):
        return _checked_category(name, kind)
    if by_steps == "date" and name not in (numbers or ()):
        return "date"
    if is_date(kind) or pa.types.is_time(kind):
        return "date" if numbers is None or name in numbers else None
    if name in (numbers or ()):
        if not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise DataError(
                f"numeric: column {name!r} holds text ({kind}), so some value of it is no number; "
                "if that value means 'missing', name it with na, else take the column as categorical"
            )
        return "number"
    if is_number(kind):
        return "number" if numbers is None else None
    if pa.types.is_null(kind):
        return "category" if categories is None else None
    return _checked_category(name, kind) if categories is None else None


def _checked_category(name: str, kind: Any) -> str:
    if is_nested(kind):
        raise DataError(f"column {name!r} is {kind}: a table takes one number, text or date a row; leave it out with drop")
    return "category"


def _check_steps(name: str, kind: str, steps: ColumnSteps) -> None:
    for step in steps.named:
        if step not in _STEPS_OF[kind]:
            known = ", ".join(_STEPS_OF[kind])
            raise UsageError(f"steps of {name!r}: {step!r} does not apply to a column that is a {kind}; those that do: {known}")
