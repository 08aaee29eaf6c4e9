"""Labels that hardly any row has: misspelt, mistaken, or classes that can't be learned."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.explore.drafting.columns import written_value
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import TableLook, coded

_RARE_ROWS, _RARE_SHARE = 5, 0.001
_ENOUGH_ROWS = 100
_SHOWN = 4


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
    most = max(1, min(_RARE_ROWS, int(_RARE_SHARE * label.rows)))
    rare = [(value, count) for value, count in label.counts if count <= most]
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


def _same(one: str, other: str) -> bool:
    return one.strip(" .").casefold() == other.strip(" .").casefold()


def _code_of(look: TableLook, value: str) -> int:

    names = [written_value(one) for one in look.label.values.dictionary_encode().dictionary.to_pylist()]
    return names.index(value)
