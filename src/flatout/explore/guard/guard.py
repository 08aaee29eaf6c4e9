"""All guards of a table, each of which can be switched off by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flatout.base.units import show_count
from flatout.data.option_checks import GUARDS
from flatout.explore.guard.constants import find_near_constants
from flatout.explore.guard.dated import find_dates
from flatout.explore.guard.duplicates import find_duplicates
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.groups import find_groups
from flatout.explore.guard.ids import find_ids
from flatout.explore.guard.leaks import find_leaks
from flatout.explore.guard.leaks_together import find_leaks_together
from flatout.explore.guard.look import TableLook
from flatout.explore.guard.rare_labels import find_rare_labels
from flatout.explore.guard.tails import find_tails

_MEASURED = ("leak",)  # says itself on how many rows


def switched_on(written: Any) -> frozenset[str]:
    """The guards that `guard: off` or `guard: {leak: off}` leaves on."""
    if isinstance(written, Mapping):
        return frozenset(name for name in GUARDS if written.get(name, True))
    return frozenset(GUARDS) if written is None or written else frozenset()


def guard_table(look: TableLook, on: frozenset[str] = frozenset(GUARDS)) -> list[GuardFinding]:
    """The findings, at most one of a kind for a column. Columns that are ids are judged by no other guard."""
    if not on:
        return []
    found = [one for one in _found(look) if one.guard in on]
    return found if look.whole else [_of_sample(one, look.rows) for one in found]


def _found(look: TableLook) -> Iterator[GuardFinding]:
    all_ids = list(find_ids(look))
    # the first rows of a large file have few rows of each user: a column with any repeats may still be a group
    unique = [one.column for one in all_ids if look.whole or one.value == 1]
    groups = list(find_groups(look, unique))
    all_ids = [one for one in all_ids if one.column not in [group.column for group in groups]]
    ids = [one.column for one in all_ids]
    yield from all_ids
    rest = look.without([*ids, *(one.column for one in groups)])
    leaks = list(find_leaks(rest))
    yield from leaks
    yield from find_leaks_together(rest.without([one.column for one in leaks]))
    near = list(find_near_constants(rest))
    yield from near
    yield from find_tails(rest.without([one.column for one in near]))
    yield from find_rare_labels(look)
    dates = list(find_dates(look))
    yield from find_duplicates(look, ids, almost=not dates and not groups)
    yield from dates
    yield from groups


def _of_sample(one: GuardFinding, rows: int) -> GuardFinding:
    return one if one.guard in _MEASURED else replace(one, figure=f"{one.figure} (of the first {show_count(rows)} rows)")
