"""Text to the tree of an expression. Operators, the weakest first: or, and, not, comparisons, + -, * / // %, **."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flatout.data.fitted.derived.expressions import Expression, FunctionCall, ListLiteral, LiteralValue, NamedColumn, is_within
from flatout.data.fitted.derived.tokens import ExpressionError, Word, words_of

MOST_NESTED = 40  # parentheses within parentheses
MOST_DEEP = 150  # of the tree: 1 + 1 + 1 ... counts too
MOST_NODES = 4_000
MOST_LISTED = 1000

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_SUMS, _PRODUCTS = ("+", "-"), ("*", "/", "//", "%")
_WORDS = ("and", "or", "not", "in", "is", "by", "true", "false", "null")
_NULLS = {"none": "null", "nan": "null", "na": "null"}
_Item = TypeVar("_Item")


def parsed(text: str) -> Expression:
    """ExpressionError says what was expected, and where."""
    reader = _Reader(words_of(text))
    if reader.next.kind == "end":
        raise ExpressionError(0, 0, "an expression is expected, and this is empty")
    found = reader.expression()
    if reader.next.kind != "end":
        raise reader.unexpected("an operator, or the end")
    if not is_within(found, MOST_DEEP, MOST_NODES):
        raise ExpressionError(0, len(text), f"more than {MOST_DEEP} operators in a row: split it into several derived columns")
    return found


class _Reader:
    def __init__(self, words: list[Word]) -> None:
        self._words, self._place, self._nested = words, 0, 0

    @property
    def next(self) -> Word:
        return self._words[self._place]

    def expression(self) -> Expression:
        self._nested += 1
        if self._nested > MOST_NESTED:
            raise ExpressionError(self.next.start, self.next.stop, f"more than {MOST_NESTED} levels of parentheses")
        found = self._chain(lambda: self._chain(self._negated, ("and",)), ("or",))
        self._nested -= 1
        return found

    def unexpected(self, wanted: str) -> ExpressionError:
        word = self.next
        came = "the end" if word.kind == "end" else repr(word.text)
        return ExpressionError(word.start, max(word.stop, word.start + 1), f"expected {wanted}, got {came}")

    def _chain(self, operand: Callable[[], Expression], operators: tuple[str, ...]) -> Expression:
        """One operator after the other, from the left."""
        found = operand()
        while self._is(*operators):
            sign = self._take()
            found = _operation(sign.text, found, operand())
        return found

    def _negated(self) -> Expression:
        signs = []
        while self._is("not"):
            signs.append(self._take())
        found = self._compared()
        for sign in reversed(signs):
            found = FunctionCall(sign.start, found.stop, "not", (found,))
        return found

    def _compared(self) -> Expression:
        """Also 0 < a < b, which means 0 < a and a < b."""
        left = self._sum()
        found: Expression | None = None
        while self._is(*_COMPARISONS):
            sign, right = self._take(), self._sum()
            pair = _operation(sign.text, left, right)
            found, left = pair if found is None else _operation("and", found, pair), right
        left = found or left
        while self._is("in", "not", "is"):
            left = self._tested(left)
        return left

    def _tested(self, value: Expression) -> Expression:
        """value [not] in [...], value is [not] null."""
        word = self._take()
        negated = word.text == "not" or (word.text == "is" and self._is("not") and bool(self._take()))
        if word.text == "is":
            stop = self._expect("null", "null or not null").stop
            found = FunctionCall(value.start, stop, "is null", (value,))
        else:
            if word.text == "not":
                self._expect("in", "in, after a value and not")
            listed = self._list()
            found = FunctionCall(value.start, listed.stop, "in", (value, listed))
        return FunctionCall(found.start, found.stop, "not", (found,)) if negated else found

    def _sum(self) -> Expression:
        return self._chain(lambda: self._chain(self._signed, _PRODUCTS), _SUMS)

    def _signed(self) -> Expression:
        signs = []
        while self._is(*_SUMS):
            signs.append(self._take())
        found = self._power()
        for sign in reversed(signs):
            if sign.text == "-":
                found = FunctionCall(sign.start, found.stop, "negative", (found,))
        return found

    def _power(self) -> Expression:
        """-2 ** 2 is -(2 ** 2), and 2 ** -1 is allowed."""
        powers = [self._grouped()]
        while self._is("**"):
            self._take()
            negative = self._take() if self._is("-") else None
            one = self._grouped()
            powers.append(one if negative is None else FunctionCall(negative.start, one.stop, "negative", (one,)))
        found = powers.pop()
        while powers:
            found = _operation("**", powers.pop(), found)
        return found

    def _grouped(self) -> Expression:
        value = self._value()
        if not self._is("by"):
            return value
        word = self._take()
        if not isinstance(value, FunctionCall):
            raise ExpressionError(word.start, word.stop, "by follows a function, such as mean(price) by city")
        by = self._between("[", "]", self.expression) if self._is("[") else (self._value(),)
        stop = self._words[self._place - 1].stop
        return FunctionCall(value.start, stop, value.name, value.arguments, by, value.name_stop)

    def _value(self) -> Expression:
        word = self.next
        if word.kind == "number":
            self._take()
            return LiteralValue(word.start, word.stop, float(word.text))
        if word.kind == "text":
            self._take()
            return LiteralValue(word.start, word.stop, word.text)
        if word.kind == "name" and (word.quoted or word.text not in _WORDS):
            return self._named()
        if word.text in ("true", "false", "null"):
            self._take()
            return LiteralValue(word.start, word.stop, {"true": True, "false": False, "null": None}[word.text])
        if self._is("("):
            self._take()
            found = self.expression()
            self._expect(")", "an operator, or the ) that ends the parentheses")
            return found
        if self._is("["):
            return self._list()
        raise self.unexpected("a column, a number, a text or a function")

    def _named(self) -> Expression:
        word = self._take()
        if not self._is("(") or word.quoted:
            if word.text.lower() in _NULLS and not word.quoted:
                raise ExpressionError(
                    word.start, word.stop, "write null for a missing value; a column of that name needs backticks"
                )
            return NamedColumn(word.start, word.stop, word.text)
        arguments = self._between("(", ")", self.expression)
        return FunctionCall(word.start, self._words[self._place - 1].stop, word.text, arguments, (), word.stop)

    def _list(self) -> ListLiteral:
        start = self.next.start
        values = self._between("[", "]", self._listed)
        if len(values) > MOST_LISTED:
            raise ExpressionError(start, start + 1, f"a list has at most {MOST_LISTED:,} values: join a file of them")
        return ListLiteral(start, self._words[self._place - 1].stop, values)

    def _listed(self) -> LiteralValue:
        sign = self._take() if self._is("-") else None
        word = self.next
        literal = word.kind in ("number", "text") or (self._is("true", "false") and sign is None)
        if not literal or (word.kind == "text" and sign is not None):
            raise self.unexpected("a number, a text, true or false: a list holds nothing else")
        found = self._value()
        assert isinstance(found, LiteralValue)
        if sign is None:
            return found
        assert isinstance(found.value, float)
        return LiteralValue(sign.start, found.stop, -found.value)

    def _between(self, opening: str, closing: str, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        self._expect(opening, opening)
        found: list[_Item] = []
        while not self._is(closing):
            if found:
                self._expect(",", f"a comma, or the {closing} that ends this")
                if self._is(closing):
                    break
            found.append(item())
        self._expect(closing, closing)
        return tuple(found)

    def _is(self, *words: str) -> bool:
        return self.next.kind in ("sign", "name") and not self.next.quoted and self.next.text in words

    def _expect(self, text: str, wanted: str) -> Word:
        if not self._is(text):
            raise self.unexpected(wanted)
        return self._take()

    def _take(self) -> Word:
        self._place += 1
        return self._words[self._place - 1]


def _operation(sign: str, left: Expression, right: Expression) -> FunctionCall:
    return FunctionCall(left.start, right.stop, sign, (left, right))
