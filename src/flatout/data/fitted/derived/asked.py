"""`derive`, `where`, `join` and `time` as a recipe writes them, and the mistakes that show without the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.base.errors import did_you_mean
from flatout.data.fitted.derived.checking import UNSURE, ExpressionCheck, is_fitted
from flatout.data.fitted.derived.derived_values import TRUTH, WORDS
from flatout.data.fitted.derived.expressions import Expression, NamedColumn
from flatout.data.fitted.derived.parser import parsed
from flatout.data.fitted.derived.tokens import ExpressionError

_JOIN_KEYS = ("file", "on", "columns")
_AROUND = 40  # characters of a long expression on both sides of a mistake


@dataclass(frozen=True)
class AskedJoin:
    """`on`: columns of the table -> those of the file; `columns`: new names -> those of the file, None for all others."""

    file: str
    on: Mapping[str, str]
    columns: Mapping[str, str] | None


@dataclass(frozen=True)
class AskedColumns:
    derive: Mapping[str, str] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    joins: tuple[AskedJoin, ...] = ()
    time: str | None = None

    def __bool__(self) -> bool:
        return bool(self.derive or self.where or self.joins)


def asked_columns(
    derive: Any = None, where: Any = None, join: Any = None, time: Any = None, *, read: bool = True
) -> tuple[AskedColumns, list[str]]:
    """What a recipe asks for, and a line for each mistake; those of expressions only if they are to be `read`."""
    mistakes: list[str] = []
    columns: dict[str, str] = {}
    if derive is not None and not isinstance(derive, Mapping):
        mistakes.append(f"derive: expected names with expressions, such as {{speed: 60 * km / minutes}}, got {derive!r}")
    elif derive is not None:
        for name, text in derive.items():
            if isinstance(text, bool | int | float):
                text = str(text).lower()  # YAML reads a constant as a number
            if not isinstance(text, str):
                mistakes.append(f"derive: {name}: expected an expression, such as log(price), got {text!r}")
            elif not isinstance(name, str) or not name.strip():
                mistakes.append(f"derive: a column needs a name, got {name!r}")
            else:
                columns[name] = text
    conditions = [where] if isinstance(where, str) else [] if where is None else where
    if not isinstance(conditions, list | tuple) or not all(isinstance(one, str) for one in conditions):
        mistakes.append(f"where: expected a condition, such as price > 0, or a list of them, got {where!r}")
        conditions = []
    joins = [one for given in _listed(join) if (one := _join(given, mistakes)) is not None]
    if time is not None and not isinstance(time, str):
        mistakes.append(f"time: expected the column that orders the rows, got {time!r}")
    if read:
        mistakes += static_mistakes(columns, conditions)
    return AskedColumns(columns, tuple(conditions), tuple(joins), time if isinstance(time, str) else None), mistakes


def static_mistakes(derive: Mapping[str, str], where: Sequence[str]) -> list[str]:
    """The mistakes that show before the columns are known."""
    every = [(f"derive: {name}", text, "") for name, text in derive.items()] + [("where", text, TRUTH) for text in where]
    return [line for asked in every for line in checked_expression(asked[0], asked[1], lambda name: UNSURE, (), asked[2])[2]]


def checked_expression(
    title: str, text: str, kind_of: Callable[[str], str], names: Sequence[str], wanted: str = ""
) -> tuple[Expression | None, str, list[str]]:
    """The tree and its kind, and a line for each mistake. `wanted`: the kind that it must have."""
    try:
        tree = parsed(text)
    except ExpressionError as error:
        return None, UNSURE, [with_place(title, text, error)]
    check = ExpressionCheck(text, kind_of, names)
    tree, kind = check.checked(tree)
    if wanted and kind not in (wanted, UNSURE) and not check.mistakes:
        message = f"expected a condition that is {WORDS[wanted]}, and this is {WORDS[kind]}"
        check.mistakes.append(ExpressionError(tree.start, tree.stop, message))
    if kind == "null" and not check.mistakes:
        check.mistakes.append(ExpressionError(tree.start, tree.stop, "this is null in every row"))
    return tree, kind, [with_place(title, text, mistake) for mistake in check.mistakes]


def with_place(title: str, text: str, mistake: ExpressionError) -> str:
    """The mistake, and below it the expression with a mark where it is."""
    start, stop = mistake.start, max(mistake.stop, mistake.start + 1)
    first = max(0, start - _AROUND)
    shown = " ".join(text[first : max(stop, start + _AROUND)].split("\n")).replace("\t", " ")[: 2 * _AROUND + 16]
    marks = " " * (start - first) + "^" + "~" * max(0, min(stop, first + len(shown)) - start - 1)
    return f"{title}: {mistake.message}\n        {shown}\n        {marks}"


def columns_in(tree: Expression, *, fitted_inputs: bool = True) -> Iterator[str]:
    """The columns that an expression names; without `fitted_inputs` only those that new rows need."""
    if isinstance(tree, NamedColumn):
        yield tree.name
    elif is_fitted(tree) and not fitted_inputs:
        from flatout.data.fitted.derived.functions import BINNED, FUNCTIONS

        function = FUNCTIONS[tree.name]  # type: ignore[attr-defined]
        inner = tree.arguments if function.fitted == BINNED else tree.by  # type: ignore[attr-defined]
        for part in inner:
            yield from columns_in(part, fitted_inputs=False)
    else:
        for part in tree.parts:
            yield from columns_in(part, fitted_inputs=fitted_inputs)


def _listed(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def _join(given: Any, mistakes: list[str]) -> AskedJoin | None:
    if isinstance(given, Mapping):
        given = {"on" if name is True else name: value for name, value in given.items()}  # YAML 1.1 reads `on` as true
    form = "{file: stores.csv, on: store_id, columns: [size, region]}"
    if not isinstance(given, Mapping) or not isinstance(given.get("file"), str) or "on" not in given:
        mistakes.append(f"join: expected {form}, got {given!r}")
        return None
    for name in given:
        if name not in _JOIN_KEYS:
            mistakes.append(f"join: no option {name!r}; {did_you_mean(str(name), _JOIN_KEYS)}")
    on, columns = _names(given["on"]), None if given.get("columns") is None else _names(given["columns"])
    for what, names in (("on", on), ("columns", columns)):
        if names is None and given.get(what) is not None:
            mistakes.append(f"join: {what}: expected a column, a list, or {{name here: name in the file}}, got {given[what]!r}")
    return None if not on else AskedJoin(given["file"], on, columns)


def _names(given: Any) -> dict[str, str] | None:
    if isinstance(given, str):
        return {given: given}
    if isinstance(given, list | tuple) and given and all(isinstance(name, str) for name in given):
        return {name: name for name in given}
    if isinstance(given, Mapping) and given and all(isinstance(one, str) for pair in given.items() for one in pair):
        return dict(given)
    return None
