"""The kinds of an expression's parts, checked before any row is read; every mistake is found, with its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flatout.base.errors import did_you_mean
from flatout.data.fitted.dates import to_instant
from flatout.data.fitted.derived import functions
from flatout.data.fitted.derived.derived_values import DATE, NULL, NUMBER, TEXT, TRUTH, WORDS
from flatout.data.fitted.derived.expressions import (
    DateLiteral,
    Expression,
    FunctionCall,
    ListLiteral,
    LiteralValue,
    NamedColumn,
)
from flatout.data.fitted.derived.functions import FUNCTIONS, GROUPED, LAGGED, OPERATORS, ExpressionFunction
from flatout.data.fitted.derived.tokens import ExpressionError

UNSURE = "unsure"
"""The kind after a mistake, or of a column whose table was not read yet: it fits everywhere."""

_LIMITS = {"round": (-15, 15), "quantile_bin": (2, 1000), "lag": (1, 100_000), "rolling_mean": (1, 100_000)}
_BELONGING = "mean, std, count, share, min and max of one value, lag and rolling_mean"
_FOREIGN = {
    "where": "if(condition, a, b)", "ifelse": "if(condition, a, b)", "case": "if(condition, a, b)",
    "coalesce": "fill(x, other)", "fillna": "fill(x, other)", "isnull": "x is null", "isna": "x is null", "len": "length(text)",
    "cut": "bin(x, [edges])", "qcut": "quantile_bin(x, n)", "shift": "lag(x, n)", "pow": "x ** y", "power": "x ** y",
    "dayofweek": "weekday(date)", "ln": "log(x)", "avg": "mean(x)", "strip": "trim(text)",
    "str": "text(x)", "float": "number(text)",
    "int": "floor(x)", "todate": "date(text)", "to_date": "date(text)", "rolling": "rolling_mean(x, n)",
}  # fmt: skip


class ExpressionCheck:
    """Of one expression. `kind_of` gives the kind of a column, or raises a KeyError; `names` are the known columns."""

    def __init__(self, text: str, kind_of: Callable[[str], str], names: Sequence[str]) -> None:
        self._text, self._kind_of, self._names = text, kind_of, names
        self.mistakes: list[ExpressionError] = []

    def checked(self, node: Expression) -> tuple[Expression, str]:
        """The node with texts as dates where they are compared with dates, and its kind."""
        if isinstance(node, LiteralValue):
            return node, _kind_of_literal(node)
        if isinstance(node, ListLiteral):
            self._mistake(node, "a list stands after `in`, or as the edges of bin(x, [edges])")
            return node, UNSURE
        if isinstance(node, NamedColumn):
            return node, self._column(node)
        assert isinstance(node, FunctionCall)
        function = OPERATORS.get(node.name) or self._function(node)
        if function is None:
            for part in (*node.arguments, *node.by):
                if not isinstance(part, ListLiteral):
                    self.checked(part)  # for its mistakes
            return node, UNSURE
        by = tuple(self.checked(part)[0] for part in node.by)
        fitted = is_fitted(node)
        if node.by and function.fitted not in (GROUPED, LAGGED):
            self._mistake(node, f"by belongs to functions over several rows: {_BELONGING}")
        elif node.by and not fitted:
            self._mistake(node, f"{node.name} of several values is of one row: leave out by, or give it one value")
        arguments, kinds = self._arguments(node, function)
        key = self._text[node.start : node.stop] if fitted else ""
        gives = self._given(function, kinds)
        if gives == NULL:
            self._mistake(node, "this is null in every row")
        return replace(node, arguments=arguments, by=by, key=key), gives

    def _column(self, node: NamedColumn) -> str:
        try:
            return self._kind_of(node.name)
        except KeyError:
            called = " (a function needs parentheses)" if node.name in FUNCTIONS else ""
            self._mistake(node, f"no column {node.name!r}{called}; {did_you_mean(node.name, self._names)}")
            return UNSURE

    def _function(self, node: FunctionCall) -> ExpressionFunction | None:
        found = FUNCTIONS.get(node.name)
        if found is None:
            here = _FOREIGN.get(node.name.lower())
            near = f"write {here}" if here else did_you_mean(node.name, FUNCTIONS)
            self._mistake(node, f"no function {node.name!r}; {near}", stop=node.name_stop)
        return found

    def _arguments(self, node: FunctionCall, function: ExpressionFunction) -> tuple[tuple[Expression, ...], list[str]]:
        count, most = len(node.arguments), len(function.takes)
        if count < most - function.optional or (count > most and not function.repeats):
            self._mistake(node, f"expected {function.written.partition(' by ')[0]}, got {_counted(count)}")
            for part in node.arguments:
                if not isinstance(part, ListLiteral):
                    self.checked(part)
            return node.arguments, []
        wanted = [*function.takes, *function.takes[-1:] * max(0, count - most)][:count]
        found: list[Expression] = []
        kinds: list[str] = []
        for part, kind in zip(node.arguments, wanted, strict=True):
            if kind in functions.WRITTEN:
                found.append(self._written(node, part, kind, kinds))
            else:
                checked, came = self.checked(part)
                found.append(checked)
                kinds.append(came)
        return self._fitting(node, wanted, found, kinds), kinds

    def _fitting(
        self, node: FunctionCall, wanted: Sequence[str], found: list[Expression], kinds: list[str]
    ) -> tuple[Expression, ...]:
        """Checks that the kinds are those wanted; texts among dates become dates."""
        places = [place for place, kind in enumerate(wanted) if kind not in functions.WRITTEN]
        together = [place for place in places if wanted[place] in (functions.SAME, functions.ORDERED, functions.ADDABLE)]
        kind_at = dict(zip(places, kinds, strict=True))
        if any(kind_at[place] == DATE for place in together):
            for place in together:
                if kind_at[place] == TEXT and isinstance(found[place], LiteralValue):
                    found[place], kind_at[place] = self._date(found[place]), DATE
        for place in places:
            if wanted[place] == DATE and kind_at[place] == TEXT and isinstance(found[place], LiteralValue):
                found[place], kind_at[place] = self._date(found[place]), DATE
            if not _fits(kind_at[place], wanted[place]):
                self._mistake(node.arguments[place], f"{self._of(node)} takes {_told(wanted[place])}, and this is "
                              f"{WORDS[kind_at[place]]}{_remedy(kind_at[place], wanted[place])}")  # fmt: skip
                kind_at[place] = UNSURE
        sure = {_wide(kind_at[place]) for place in together} - {UNSURE, NULL}
        if len(sure) > 1:
            told = " and ".join(sorted(WORDS[kind] for kind in sure))
            self._mistake(node, f"{self._of(node)} takes values of one kind, and these are {told}")
            kind_at.update(dict.fromkeys(together, UNSURE))
        for place in places:
            one = found[place]
            if isinstance(one, LiteralValue) and one.value is None:
                around = {kind_at[other] for other in together} - {UNSURE, NULL} if place in together else {wanted[place]}
                found[place] = replace(one, null_of=_null_kind(around))
        kinds[:] = [kind_at[place] for place in places]
        return tuple(found)

    def _written(self, node: FunctionCall, part: Expression, wanted: str, kinds: Sequence[str]) -> Expression:
        if wanted == functions.COUNT:
            low, high = _LIMITS[node.name]
            number = _whole(part)
            if number is None or not low <= number <= high:
                self._mistake(part, f"expected a whole number, {low:,} to {high:,}")
                return part
            return LiteralValue(part.start, part.stop, float(number))
        if wanted == functions.WORD:
            if not (isinstance(part, LiteralValue) and isinstance(part.value, str)):
                self._mistake(part, f"{node.name} takes a text in quotes here")
            return part
        if not isinstance(part, ListLiteral) or not part.values:
            self._mistake(part, "expected a list, such as [1, 2, 3]")
            return part
        if wanted == functions.EDGES:
            edges = [one.value for one in part.values]
            if not all(_kind_of_literal(one) == NUMBER for one in part.values) or edges != sorted(set(edges)):  # type: ignore[type-var]
                self._mistake(part, "edges are numbers, the smallest first, each once")
            return part
        return self._among(part, kinds[0])

    def _among(self, listed: ListLiteral, kind: str) -> ListLiteral:
        """The list of `in`, whose values have the kind of what is looked for."""
        if kind == DATE and all(isinstance(one.value, str) for one in listed.values):
            dates = [self._date(one) for one in listed.values]
            return replace(listed, values=tuple(LiteralValue(one.start, one.stop, float(one.instant)) for one in dates))
        for one in listed.values:
            if kind not in (UNSURE, NULL) and _kind_of_literal(one) != kind:
                self._mistake(one, f"this is {WORDS[_kind_of_literal(one)]}, and the value is {WORDS[kind]}")
        return listed

    def _date(self, node: Expression) -> DateLiteral:
        assert isinstance(node, LiteralValue)
        try:
            instant = to_instant(node.value)
        except (ValueError, TypeError, OverflowError):
            instant = None
        if instant is None:
            self._mistake(node, f"{node.value!r} is no date in ISO 8601, such as '2024-01-31' or '2024-01-31T18:30:00'")
        return DateLiteral(node.start, node.stop, instant or 0)

    def _given(self, function: ExpressionFunction, kinds: Sequence[str]) -> str:
        if function.gives != functions.SAME:
            return function.gives
        same = kinds[1:] if function.name == "if" else kinds
        sure = [kind for kind in same if kind not in (UNSURE, NULL)]
        if function.name == "+":
            return TEXT if TEXT in sure else NUMBER if sure else UNSURE
        if len(set(sure)) > 1:
            return NUMBER  # numbers and truths
        return sure[0] if sure else UNSURE if UNSURE in same else NULL

    @staticmethod
    def _of(node: FunctionCall) -> str:
        return node.name if node.name in FUNCTIONS else f"`{ {'negative': '-'}.get(node.name, node.name) }`"

    def _mistake(self, node: Expression, message: str, stop: int | None = None) -> None:
        self.mistakes.append(ExpressionError(node.start, node.stop if stop is None else stop, message))


def is_fitted(node: Expression) -> bool:
    """Whether it is computed from training rows: min(x) is, min(a, b) is not."""
    if not isinstance(node, FunctionCall) or node.name not in FUNCTIONS:
        return False
    function = FUNCTIONS[node.name]
    return bool(function.fitted) and (function.run is None or len(node.arguments) == 1)


def _kind_of_literal(node: Expression) -> str:
    if not isinstance(node, LiteralValue):
        return UNSURE
    if node.value is None:
        return NULL
    return TRUTH if isinstance(node.value, bool) else TEXT if isinstance(node.value, str) else NUMBER


def _fits(kind: str, wanted: str) -> bool:
    if kind in (UNSURE, NULL) or wanted in (functions.ANY, functions.SAME):
        return True
    if wanted == functions.ORDERED:
        return kind != TEXT
    if wanted == functions.ADDABLE:
        return kind != DATE
    return _wide(kind) == wanted if wanted == NUMBER else kind == wanted


def _null_kind(around: set[str]) -> str:
    """Of a null among values of these kinds: numbers and truths together are numbers."""
    sure = around & {NUMBER, TRUTH, TEXT, DATE}
    return NUMBER if not sure or len(sure) > 1 else sure.pop()


def _wide(kind: str) -> str:
    """A truth counts as a number, 1 or 0."""
    return NUMBER if kind == TRUTH else kind


def _told(wanted: str) -> str:
    return {functions.ORDERED: "numbers or dates", functions.ADDABLE: "numbers or texts"}.get(wanted) or WORDS[wanted]


def _remedy(kind: str, wanted: str) -> str:
    if kind == TEXT and wanted == NUMBER:
        return ": number(...) makes one of it"
    if kind == TEXT and wanted in (DATE, functions.ORDERED):
        return ": date(...) makes one of it"
    if kind in (NUMBER, DATE) and wanted == TEXT:
        return ": text(...) makes one of it"
    if kind == DATE and wanted in (NUMBER, functions.ADDABLE):
        return ": days_between(first, last) gives the time between two"
    return ": write a comparison, such as x > 0" if wanted == TRUTH else ""


def _whole(node: Expression) -> int | None:
    sign = 1
    if isinstance(node, FunctionCall) and node.name == "negative":
        node, sign = node.arguments[0], -1
    if not isinstance(node, LiteralValue) or not isinstance(node.value, float) or not node.value.is_integer():
        return None
    return sign * int(node.value)


def _counted(count: int) -> str:
    return "1 argument" if count == 1 else f"{count or 'no'} arguments"
