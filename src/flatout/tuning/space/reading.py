"""Reads a space from words of the command line, from a YAML file, or from Python. All mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import RecipeError, UsageError
from flatout.recipe.load import written_in
from flatout.tuning.space.mappings import is_nested, parameter_from
from flatout.tuning.space.parameter import Parameter
from flatout.tuning.space.space import WHERE, Space, problems_of
from flatout.tuning.space.words import parameter_of


def parse_words(words: Sequence[str]) -> tuple[Space | None, list[str]]:
    """The space, and the words that are plain overrides (`lr=1e-3`). None: no word has a range or choices."""
    plain: list[str] = []
    pairs: list[tuple[str, str]] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise UsageError(f"a word of the space is written key=values, such as lr=1e-4..1e-1; got {word!r}")
        pairs.append((key.strip(), text))

    def made(key: str, text: Any) -> Parameter | None:
        found = parameter_of(key, text)
        if found is None:
            plain.append(f"{key}={text}")
        return found

    space = _space_from(pairs, made, WHERE)
    return space, plain


def read_space(path: Path) -> Space:
    """A YAML file of keys and values."""
    written, problems = written_in(path)
    return _whole_space(_flat(written), str(path), problems)


def space_of(written: Mapping[str, Any]) -> Space:
    """From Python: keys to words, lists, (low, high), or mappings."""
    if not isinstance(written, Mapping):
        raise UsageError(f"a space is a mapping such as {{'lr': '1e-4..1e-1'}}, got {type(written).__name__}")
    return _whole_space(_flat(written), WHERE)


def _whole_space(pairs: Iterator[tuple[str, Any]], where: str, earlier: Sequence[str] = ()) -> Space:
    space = _space_from(pairs, parameter_from, where, earlier)
    if space is None:
        raise RecipeError(["it is empty: write a range or choices for a key, such as lr: 1e-4..1e-1"], where)
    return space


def _space_from(
    pairs: Iterable[tuple[str, Any]],
    made: Callable[[str, Any], Parameter | None],
    where: str,
    earlier: Sequence[str] = (),
) -> Space | None:
    problems, found, wrong = list(earlier), [], set()
    for key, value in pairs:
        try:
            one = made(key, value)
        except UsageError as error:
            problems.append(f"{key}: {error}")
            wrong.add(key)
            continue
        found += [] if one is None else [one]
    # the condition on a parameter that has a mistake of its own is right
    together = problems_of([one for one in found if one.only_if is None or one.only_if.key not in wrong]) if found else []
    problems += [problem for problem in together if not (wrong and problem.startswith("the space has one point"))]
    if problems:
        raise RecipeError(problems, where)
    return Space(tuple(found)) if found else None


def _flat(written: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """`model: {hidden: 64|128}` is `model.hidden`."""
    for key, value in written.items():
        if is_nested(value):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
