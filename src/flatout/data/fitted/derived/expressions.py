"""The tree of an expression. Every node knows its place in the text, for messages, and how deep the tree below it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Expression:
    """`start` and `stop` are places in the text."""

    start: int
    stop: int

    @property
    def parts(self) -> tuple[Expression, ...]:
        return ()

    def walk(self) -> Iterator[Expression]:
        """This node and all below it, from the left."""
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass(frozen=True)
class LiteralValue(Expression):
    """A number, text, true, false or null (None), which has the kind of the values around it once it was checked."""

    value: float | str | bool | None
    null_of: str = ""


@dataclass(frozen=True)
class DateLiteral(Expression):
    """Text that is compared with a date: microseconds since 1970."""

    instant: int


@dataclass(frozen=True)
class ListLiteral(Expression):
    """[1, 2, 3]: only where a function or `in` takes one."""

    values: tuple[LiteralValue, ...]


@dataclass(frozen=True)
class NamedColumn(Expression):
    name: str


@dataclass(frozen=True)
class FunctionCall(Expression):
    """Also every operator: `a + b` is the function "+". `by` are the expressions of a group.

    `key` is the text of a call that is fitted on training rows, in an expression that was checked; else it is empty.
    """

    name: str
    arguments: tuple[Expression, ...]
    by: tuple[Expression, ...] = ()
    name_stop: int = 0
    key: str = ""

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (*self.arguments, *self.by)


def is_within(expression: Expression, most_deep: int, most_nodes: int) -> bool:
    """Whether the tree is that small; found without recursion. a < b < c has b twice, so a short text can have a large tree."""
    nodes, waiting = 0, [(expression, 1)]
    while waiting:
        node, depth = waiting.pop()
        nodes += 1
        if depth > most_deep or nodes > most_nodes:
            return False
        waiting += [(part, depth + 1) for part in node.parts]
    return True
