"""The words of an expression: numbers, texts, names and signs, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_CHARACTERS = 4_000

_NUMBER = r"(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_WORDS = re.compile(
    rf"""(?P<space>\s+)
    |(?P<number>{_NUMBER})
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`[^`]*`)
    |(?P<name>[^\W\d]\w*)
    |(?P<sign>\*\*|//|==|!=|<=|>=|<>|&&|\|\||[-+*/%<>=!&|^(),\[\]])""",
    re.VERBOSE,
)
_NEITHER = re.compile(r"[^\s\w'\"`()\[\],+*/%<>=!-]+|.", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}
_NEAR = {
    "=": "write == to compare", "<>": "write !=", "&&": "write and", "&": "write and", "||": "write or", "|": "write or",
    "!": "write not", "^": "write ** for a power",
}  # fmt: skip


class ExpressionError(Exception):
    """A mistake with its place in the text; becomes a line of a RecipeError."""

    def __init__(self, start: int, stop: int, message: str) -> None:
        super().__init__(message)
        self.start, self.stop, self.message = start, stop, message


@dataclass(frozen=True)
class Word:
    """`kind`: number, text, name (a column in backticks too), sign, or end."""

    kind: str
    text: str
    start: int
    stop: int
    quoted: bool = False


def words_of(text: str) -> list[Word]:
    """The last one is of the kind "end"."""
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(0, 0, f"an expression has at most {MOST_CHARACTERS:,} characters, this one has {len(text):,}")
    return [*_words(text), Word("end", "", len(text), len(text))]


def _words(text: str) -> Iterator[Word]:
    place = 0
    while place < len(text):
        found = _WORDS.match(text, place)
        if found is None:
            raise _unreadable(text, place)
        kind, written, place = str(found.lastgroup), found.group(), found.end()
        if written in _NEAR:
            raise ExpressionError(found.start(), place, f"{written} is no operator here: {_NEAR[written]}")
        if kind == "number" and place < len(text) and (text[place].isalnum() or text[place] in "._"):
            raise ExpressionError(
                found.start(), place + 1, "a number, and something right after it: a column `1st` needs backticks"
            )
        if kind == "text":
            yield Word(
                "text",
                re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), written[1:-1], flags=re.DOTALL),
                found.start(),
                place,
            )
        elif kind == "quoted":
            yield Word("name", written[1:-1], found.start(), place, quoted=True)
        elif kind != "space":
            yield Word(kind, written, found.start(), place)


def _unreadable(text: str, place: int) -> ExpressionError:
    sign = text[place]
    if sign in "'\"":
        return ExpressionError(place, len(text), f"a text that begins with {sign} and does not end")
    if sign == "`":
        return ExpressionError(place, len(text), "a column that begins with ` and does not end")
    strange = _NEITHER.match(text, place)
    stop = strange.end() if strange else place + 1
    return ExpressionError(place, stop, f"{text[place:stop]!r} is not part of an expression; such a column needs backticks")
