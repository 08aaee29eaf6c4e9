"""Every function and operator of the expressions: what it takes, what it gives, and how it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.data.fitted.derived import date_functions as dates
from flatout.data.fitted.derived import number_functions as numbers
from flatout.data.fitted.derived import text_functions as texts
from flatout.data.fitted.derived.derived_values import DATE, NUMBER, TEXT, TRUTH

ANY, SAME, ORDERED, ADDABLE = "any", "same", "ordered", "addable"
EDGES, COUNT, WORD, LIST = "edges", "count", "word", "list"
WRITTEN = (EDGES, COUNT, WORD, LIST)
"""Arguments that are written in the expression itself: a list of numbers, a whole number, a text, a list."""

GROUPED, BINNED, LAGGED = "grouped", "binned", "lagged"


@dataclass(frozen=True)
class ExpressionFunction:
    """`takes` has the kind of each argument; of `optional` ones at the end any may be left out. `repeats`: the last may be
    given several times. `fitted`: computed from the training rows (GROUPED, BINNED, LAGGED).

    "same" arguments are of one kind, "ordered" ones numbers or dates, "addable" ones numbers or texts.
    """

    written: str
    meaning: str
    takes: tuple[str, ...]
    gives: str
    run: Callable[..., Any] | None = None
    optional: int = 0
    repeats: bool = False
    fitted: str = ""

    @property
    def name(self) -> str:
        return self.written.partition("(")[0]


_Made = ExpressionFunction
_N = (NUMBER,)
_UNCOMPUTED = "null where there is none"

_LISTED = (
    _Made("log(x)", f"natural logarithm; {_UNCOMPUTED}: 0 and below", _N, NUMBER, numbers.of_numbers(np.log)),
    _Made("log10(x)", "logarithm to base 10", _N, NUMBER, numbers.of_numbers(np.log10)),
    _Made("log2(x)", "logarithm to base 2", _N, NUMBER, numbers.of_numbers(np.log2)),
    _Made("log1p(x)", "log(1 + x), exact for small x", _N, NUMBER, numbers.of_numbers(np.log1p)),
    _Made("exp(x)", "e to the power of x; null on overflow", _N, NUMBER, numbers.of_numbers(np.exp)),
    _Made("sqrt(x)", f"square root; {_UNCOMPUTED}: below 0", _N, NUMBER, numbers.of_numbers(np.sqrt)),
    _Made("abs(x)", "without its sign", _N, NUMBER, numbers.of_numbers(np.abs)),
    _Made("sign(x)", "-1, 0 or 1", _N, NUMBER, numbers.of_numbers(np.sign)),
    _Made("floor(x)", "the next whole number below", _N, NUMBER, numbers.of_numbers(np.floor)),
    _Made("ceil(x)", "the next whole number above", _N, NUMBER, numbers.of_numbers(np.ceil)),
    _Made("round(x, digits)", "rounded; without digits to a whole number, halves to the even one", (NUMBER, COUNT), NUMBER,
          numbers.rounded, optional=1),
    _Made("clip(x, low, high)", "low if x is below it, high if x is above it",
          (NUMBER, NUMBER, NUMBER), NUMBER, numbers.clipped),
    _Made("if(condition, a, b)", "a where the condition holds, else b; null where it is not known", (TRUTH, SAME, SAME), SAME,
          numbers.if_else),
    _Made("fill(x, other, ...)", "the first of them that is not null", (SAME, SAME), SAME, numbers.filled, repeats=True),
    _Made("bin(x, [edges])", "how many of the edges are at or below x: 0 below the first",
          (NUMBER, EDGES), NUMBER, numbers.binned),
    _Made("quantile_bin(x, n)", "n bins that hold equally many training rows, from 0 on",
          (NUMBER, COUNT), NUMBER, fitted=BINNED),
    _Made("year(date)", "the year", (DATE,), NUMBER, dates.part_of("year")),
    _Made("month(date)", "1 to 12", (DATE,), NUMBER, dates.part_of("month")),
    _Made("day(date)", "of the month, from 1", (DATE,), NUMBER, dates.part_of("day")),
    _Made("day_of_year(date)", "from 1", (DATE,), NUMBER, dates.DAY_OF_YEAR),
    _Made("weekday(date)", "0 is Monday, 6 is Sunday", (DATE,), NUMBER, dates.part_of("weekday")),
    _Made("is_weekend(date)", "true on Saturday and Sunday", (DATE,), TRUTH, dates.IS_WEEKEND),
    _Made("hour(date)", "0 to 23", (DATE,), NUMBER, dates.part_of("hour")),
    _Made("minute(date)", "0 to 59", (DATE,), NUMBER, dates.MINUTE),
    _Made("second(date)", "0 to 59", (DATE,), NUMBER, dates.SECOND),
    _Made("days_between(first, last)", "days from one date to the other, with fractions", (DATE, DATE), NUMBER,
          dates.between(dates.DAY_US)),
    _Made("hours_between(first, last)", "the same in hours", (DATE, DATE), NUMBER, dates.between(3600 * dates.SECOND_US)),
    _Made("minutes_between(first, last)", "the same in minutes", (DATE, DATE), NUMBER, dates.between(60 * dates.SECOND_US)),
    _Made("seconds_between(first, last)", "the same in seconds", (DATE, DATE), NUMBER, dates.between(dates.SECOND_US)),
    _Made("date(text, format)", "the date that a text is: ISO 8601, or a format such as '%d.%m.%Y'; null for other text",
          (TEXT, WORD), DATE, texts.date_in, optional=1),
    _Made("length(text)", "the number of characters", (TEXT,), NUMBER, texts.to_numbers(len)),
    _Made("word_count(text)", "the number of words, separated by spaces", (TEXT,), NUMBER, texts.to_numbers(texts.word_count)),
    _Made("lower(text)", "in lower case", (TEXT,), TEXT, texts.to_texts(str.lower)),
    _Made("upper(text)", "in upper case", (TEXT,), TEXT, texts.to_texts(str.upper)),
    _Made("trim(text)", "without spaces at both ends", (TEXT,), TEXT, texts.to_texts(str.strip)),
    _Made("contains(text, 'part')", "whether the part is in it; case counts", (TEXT, WORD), TRUTH,
          texts.to_numbers(str.__contains__, truth=True)),
    _Made("startswith(text, 'part')", "whether it begins so",
          (TEXT, WORD), TRUTH, texts.to_numbers(str.startswith, truth=True)),
    _Made("endswith(text, 'part')", "whether it ends so", (TEXT, WORD), TRUTH, texts.to_numbers(str.endswith, truth=True)),
    _Made("text(x)", "a number, truth or date as text, so that it becomes a category: 3.0 is '3'",
          (ANY,), TEXT, numbers.as_text),
    _Made("number(text)", "the number that a text is; null for other text", (TEXT,), NUMBER, texts.to_numbers(texts.number_in)),
    _Made("mean(x) by group", "the mean over the training rows of the group", _N, NUMBER, fitted=GROUPED),
    _Made("std(x) by group", "their standard deviation (n - 1)", _N, NUMBER, fitted=GROUPED),
    _Made("count() by group", "how many training rows the group has; 0 for a group that they have not",
          (), NUMBER, fitted=GROUPED),
    _Made("share(condition) by group", "the share of the group's training rows for which it holds",
          (TRUTH,), NUMBER, fitted=GROUPED),
    _Made("min(x) by group", "the smallest of them; min(a, b, ...) with two or more is the smallest in the row",
          (NUMBER, NUMBER),
          NUMBER, numbers.least, optional=1, repeats=True, fitted=GROUPED),
    _Made("max(x) by group", "the largest of them; max(a, b, ...) with two or more is the largest in the row", (NUMBER, NUMBER),
          NUMBER, numbers.greatest, optional=1, repeats=True, fitted=GROUPED),
    _Made("lag(x, n) by group", "x of the n-th row before this one, by time, in the group",
          (NUMBER, COUNT), NUMBER, fitted=LAGGED),
    _Made("rolling_mean(x, n) by group", "the mean of x over the n rows before this one",
          (NUMBER, COUNT), NUMBER, fitted=LAGGED),
)  # fmt: skip

_PAIR, _TRUTHS = (NUMBER, NUMBER), (TRUTH, TRUTH)
_SIGNS = (
    _Made("+", "sum; of two texts, one after the other", (ADDABLE, ADDABLE), SAME, numbers.added),
    _Made("-", "difference", _PAIR, NUMBER, numbers.of_numbers(np.subtract)),
    _Made("*", "product", _PAIR, NUMBER, numbers.of_numbers(np.multiply)),
    _Made("/", "ratio; null where the divisor is 0", _PAIR, NUMBER, numbers.of_numbers(np.divide)),
    _Made("//", "ratio, rounded down",
          _PAIR, NUMBER, numbers.of_numbers(lambda a, b: np.where(b == 0, np.nan, np.floor_divide(a, b)))),
    _Made("%", "remainder, with the sign of the divisor", _PAIR, NUMBER, numbers.of_numbers(np.mod)),
    _Made("**", "power", _PAIR, NUMBER, numbers.of_numbers(np.power)),
    _Made("negative", "the negative number", _N, NUMBER, numbers.of_numbers(np.negative)),
    _Made("==", "equal", (SAME, SAME), TRUTH, numbers.compared(np.equal)),
    _Made("!=", "not equal", (SAME, SAME), TRUTH, numbers.compared(np.not_equal)),
    _Made("<", "less", (ORDERED, ORDERED), TRUTH, numbers.compared(np.less)),
    _Made("<=", "less or equal", (ORDERED, ORDERED), TRUTH, numbers.compared(np.less_equal)),
    _Made(">", "greater", (ORDERED, ORDERED), TRUTH, numbers.compared(np.greater)),
    _Made(">=", "greater or equal", (ORDERED, ORDERED), TRUTH, numbers.compared(np.greater_equal)),
    _Made("and", "both hold", _TRUTHS, TRUTH, numbers.both),
    _Made("or", "one of them holds, or both", _TRUTHS, TRUTH, numbers.either),
    _Made("not", "does not hold", (TRUTH,), TRUTH, numbers.opposite),
    _Made("in", "one of the list", (ANY, LIST), TRUTH, numbers.among),
    _Made("is null", "missing", (ANY,), TRUTH, numbers.is_missing),
)  # fmt: skip

FUNCTIONS = {one.name: one for one in _LISTED}
OPERATORS = {one.written: one for one in _SIGNS}
