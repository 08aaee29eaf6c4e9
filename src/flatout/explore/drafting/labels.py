"""Chooses the label of a table, and whether it is a class or a number."""

from __future__ import annotations

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.base.units import show_count
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.drafting.sample import TableSample

_MOST_CLASSES = 20  # of integers; more are a number to predict
_SURE = ("label", "labels", "target", "targets", "class", "y")
_LIKELY = (
    "income", "outcome", "survived", "species", "diagnosis", "churn", "churned", "exited", "fraud", "isfraud", "covertype",
    "price", "saleprice", "quality", "rating", "medianhousevalue", "medv", "response", "clicked", "subscribed",
)  # fmt: skip


def choose_label(sample: TableSample, asked: str | None, where: str) -> SampledColumn:
    """The column asked for, or the one with the name of a label; UsageError lists the columns."""
    columns = sample.columns
    if asked is not None:
        numbered = f"column_{asked}"
        if asked not in columns and asked.isdigit() and sample.options.get("header") is False and numbered in columns:
            asked = numbered
        if asked not in columns:
            raise UsageError(f"--label: {where} has no column {asked!r}; {did_you_mean(asked, columns)}")
        return columns[asked]
    for names in (_SURE, _LIKELY):
        called = [name for name in columns if "".join(filter(str.isalnum, name.lower())) in names]
        if len(called) == 1:
            return columns[called[0]]
        if called:
            break
    width = max(map(len, columns))
    listed = "\n".join(f"  {name:{width}}  {column.words}" for name, column in columns.items())
    why = f"{' and '.join(called)} might all be it" if called else "none is called label, target, class, y or the like"
    example = list(columns)[-1]
    raise UsageError(f"which column is to be learned? Of those in {where}, {why}: say it, such as --label {example}\n{listed}")


def target_of(label: SampledColumn) -> str:
    """ "class" or "number"; an error if the column can't be a label."""
    if label.kind in ("date", "nested", "empty"):
        raise UsageError(f"--label: column {label.name!r} holds {label.words}: the label is a class or a number")
    if label.distinct < 2:
        value = label.counts[0][0] if label.counts else "missing"
        raise DataError(f"the label {label.name!r} is {value!r} in all {label.rows} rows looked at: there is nothing to learn")
    if label.kind == "text" and label.distinct > max(20, label.rows / 4):
        raise UsageError(
            f"--label: column {label.name!r} is text with {label.distinct} different values in {label.rows} rows: no classes "
            "to tell apart; name another column"
        )
    if label.kind in ("text", "truth"):
        return "class"
    whole = bool((label.numbers % 1 == 0).all())
    return "class" if whole and label.distinct <= _MOST_CLASSES else "number"


def label_words(label: SampledColumn, target: str) -> str:
    if target == "number":
        return f"a number, {show_count(label.numbers.min())} to {show_count(label.numbers.max())}"
    present = label.rows - label.missing - label.bad
    shares = [
        f"{value} {count / present:.0%}" if count > 0.01 * present else f"{value} <1%" for value, count in label.counts[:4]
    ]
    more = f" and {label.distinct - 4} more" if label.distinct > 4 else ""
    return f"{label.distinct} classes: {', '.join(shares)}{more}"
