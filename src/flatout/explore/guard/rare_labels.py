"""Labels that hardly any row has: misspelt, mistaken, or classes that can't be learned."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.explore.drafting.columns import MEANS_MISSING, SampledColumn, written_value
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import TableLook, coded

_RARE_ROWS, _RARE_SHARE = 5, 0.001
_ENOUGH_ROWS = 100
_SHOWN = 4
_MOST_CLASSES = 100


def find_rare_labels(look: TableLook) -> Iterator[GuardFinding]:
    label = look.label
    if label.bad:
        yield GuardFinding(
            "rare_label", label.name, label.bad, f"not a number in {label.bad:,} rows: {label.stray}",
            "correct these rows; on_bad: skip leaves them out and counts them", {"on_bad": "skip"},
            "these rows are left out and counted (on_bad: skip)",
        )  # fmt: skip
    if look.target != "class" or label.rows < _ENOUGH_ROWS:
        return
    if label.kind == "text":
        yield from _variants(look)
    most = max(1, min(_RARE_ROWS, int(_RARE_SHARE * label.rows)))
    rare = [(value, count) for value, count in label.counts if count <= most and not _no_class(label, value)]
    if not rare or len(rare) > label.distinct / 2 + 1:  # else every class is rare, as in a list of species
        return
    usual = [value for value, count in label.counts if count > most]
    shown = ", ".join(f"{value!r} in {count} row{'' if count == 1 else 's'}" for value, count in rare[:_SHOWN])
    more = f" and {len(rare) - _SHOWN} more" if len(rare) > _SHOWN else ""
    near = [f"{value!r} may be {other!r}" for value, _ in rare[:_SHOWN] for other in usual if _same(value, other)]
    where = int((coded(label) == _code_of(look, rare[0][0])).argmax()) + 1
    yield GuardFinding(
        "rare_label", label.name, float(rare[0][1]), f"{shown}{more}; first in row {where:,}",
        f"correct or remove these rows{': ' + ', '.join(near) if near else ''}, or keep them as classes of their own",
    )  # fmt: skip


def _no_class(label: SampledColumn, value: str) -> bool:
    """Whether `_variants` names it."""
    return label.kind == "text" and (_means_missing(value) or any(_same(value, other) for other, _ in _more(label, value)))


def _variants(look: TableLook) -> Iterator[GuardFinding]:
    """Classes that differ from a more frequent one by case or spaces, and those whose name means "missing"."""
    label = look.label
    for value, count in label.counts[:_MOST_CLASSES]:
        same = next((other for other, _ in _more(label, value) if _same(value, other)), None)
        if same is None and not _means_missing(value):
            continue
        advice = (
            f"correct these rows: {value!r} may be {same!r}" if same is not None else "remove these rows if it means missing"
        )
        yield GuardFinding("rare_label", label.name, float(count), f"{value!r} in {count:,} rows is a class of its own", advice)


def _more(label: SampledColumn, value: str) -> list[tuple[str, int]]:
    """The more frequent classes."""
    names = [name for name, _ in label.counts[:_MOST_CLASSES]]
    return label.counts[: names.index(value)] if value in names else label.counts[:_MOST_CLASSES]


def _means_missing(value: str) -> bool:
    return value.strip().lower() in MEANS_MISSING


def _same(one: str, other: str) -> bool:
    return one.strip(" .").casefold() == other.strip(" .").casefold()


def _code_of(look: TableLook, value: str) -> int:

    names = [written_value(one) for one in look.label.values.dictionary_encode().dictionary.to_pylist()]
    return names.index(value)
