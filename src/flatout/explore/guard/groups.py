"""Rows that belong together (one user, one photo) on both sides of a random split: the model recognises them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.ids import ID_NAME
from flatout.explore.guard.look import TableLook, coded, has_gaps, is_whole

Array = np.ndarray[Any, Any]

_ENTITY = re.compile(
    r"(^|[^a-z])(user|customer|client|patient|person|people|member|account|subject|session|photo|image|picture|file|filename"
    r"|household|family|visitor|player|student|employee|driver|rider|device|owner|author|speaker|writer|buyer|seller|scene|video"
    r"|donor|group|site|well|plot)s?(_?(id|ids|no|nr|number|name|key|uuid))?([^a-z]|$)",
    re.IGNORECASE,
)
_LEAST_GROUPS = 20
_ROWS_A_GROUP = (1.2, 300.0)
_SAME = 0.99  # of the groups have one value in another column
_LEAST_VALUES = 3
_MANY_ROWS = 10.0  # of so many rows the label agrees by chance in no group


def find_groups(look: TableLook, ids: Sequence[str]) -> Iterator[GuardFinding]:
    """`ids` are not groups: each of their values has one row."""
    if not look.random_holdout or look.held:
        return
    inputs = [column for column in look.inputs if column.name not in ids]
    for column in inputs:
        if not _can_name(column) or column.distinct < _LEAST_GROUPS:
            continue
        in_a_group = (column.rows - int(column.values.null_count)) / column.distinct
        least = _ROWS_A_GROUP[0] if look.whole else 1.001
        if not least <= in_a_group <= _ROWS_A_GROUP[1]:
            continue
        entity, named = bool(_ENTITY.search(_words(column.name))), bool(ID_NAME.search(column.name))
        fixed = [] if entity else _determined(column, [other for other in inputs if other is not column])
        if not entity and len(fixed) < (1 if named else 2):
            continue
        if entity and in_a_group > _MANY_ROWS and _only_label(column, look.label, inputs):
            continue  # a code of the label, whatever it is called
        why = f"; rows of one agree in {', '.join(fixed[:3])}" if fixed else ""
        yield GuardFinding(
            "group", column.name, in_a_group,
            f"{column.distinct:,} groups of {in_a_group:.1f} rows on average, which a random holdout would split{why}",
            f"keep a group on one side: holdout_group: {column.name}, and drop it as an input",
            {"holdout_group": column.name, "drop": [column.name]},
            "groups stay on one side of the split, and the column is left out",
        )  # fmt: skip
        return


def _can_name(column: SampledColumn) -> bool:
    """Text and whole numbers; also those of a column with missing values, which a table may keep as 17.0."""
    return column.kind in ("text", "whole") or (has_gaps(column) and is_whole(column))


def _only_label(column: SampledColumn, label: SampledColumn, inputs: Sequence[SampledColumn]) -> bool:
    """Whether rows of one value agree in the label and in nothing else: two rows of one user agree in more than that."""
    return bool(_determined(column, [label], 2)) and not _determined(column, [other for other in inputs if other is not column])


def _words(name: str) -> str:
    """user_id for userId."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def _determined(column: SampledColumn, others: Sequence[SampledColumn], least: int = _LEAST_VALUES) -> list[str]:
    """Other columns that have one value in almost every group of several rows, although they differ between groups."""
    groups = coded(column)
    large = np.bincount(groups) > 1
    if large.sum() < _LEAST_GROUPS:
        return []
    found = []
    for other in others:
        if other.distinct < least or other.counts[0][1] > 0.9 * other.rows:
            continue
        values = coded(other)
        pairs = np.unique(groups * (int(values.max()) + 1) + values)
        different = np.bincount(pairs // (int(values.max()) + 1), minlength=len(large))
        if (different[large] == 1).mean() >= _SAME:
            found.append(other.name)
    return found
