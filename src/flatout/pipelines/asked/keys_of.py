"""Keys of a file as fields of a dataclass: each has a reader, and all mistakes are found at once.

A schema library would take longer to load than a pipeline needs to see that nothing changed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from flatout.base.errors import FlatoutError, did_you_mean

_Made = TypeVar("_Made")
Reader = Callable[[Any], Any]
_LONGEST = 80


class Mistakes(ValueError):
    """Several in one value, each with its place below it."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        self.found = found
        super().__init__("; ".join(words for _, words in found))


def key(read: Reader, default: Any = dataclasses.MISSING, example: str = "") -> Any:
    """A field that `read` makes of what is written; ValueError says what was expected. `example`: for a key that is missing."""
    how: Any = {"default": default} if default != {} else {"default_factory": dict}
    return dataclasses.field(**how, metadata={"read": read, "example": example}, kw_only=True)


def _default(one: dataclasses.Field[Any]) -> Any:
    return one.default if one.default_factory is dataclasses.MISSING else one.default_factory()


def read_keys(made: type[_Made], written: Any) -> _Made:
    """Raises Mistakes with all that is wrong."""
    if not isinstance(written, Mapping):
        raise ValueError(f"expected keys and values, got {shown(written)}")
    known = {one.name: one for one in dataclasses.fields(made)}  # type: ignore[arg-type]
    mistakes: list[tuple[str, str]] = []
    values: dict[str, Any] = {}
    for name, value in written.items():
        if name not in known:
            mistakes.append((str(name), f"no such key; {did_you_mean(name, known)}"))
            continue
        try:
            values[name] = known[name].metadata["read"](value)
        except Mistakes as inner:
            mistakes += [(f"{name}.{place}".rstrip("."), words) for place, words in inner.found]
        except (ValueError, FlatoutError) as error:
            mistakes.append((str(name), str(error)))
    for name, one in known.items():
        if _default(one) is dataclasses.MISSING and name not in written:
            mistakes.append((name, f"missing; write for example {one.metadata['example']}"))
    if mistakes:
        raise Mistakes(mistakes)
    return made(**values)


def written_keys(made: Any) -> dict[str, Any]:
    """Those whose values are not the default ones, as JSON has them."""
    found = {}
    for one in dataclasses.fields(made):
        value = getattr(made, one.name)
        if value != _default(one):
            found[one.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return written_keys(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:_LONGEST]


# ---- readers ----


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected text, got {shown(value)}")
    return value


def as_text(value: Any) -> str:
    """A number is text here, and so is the `off` that YAML takes for a truth value."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return text(str(value) if isinstance(value, int | float) else value)


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected yes or no, got {shown(value)}")
    return value


def number(least: float = -math.inf, most: float = math.inf, above: float = -math.inf) -> Reader:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"expected a number, got {shown(value)}")
        if value < least or value > most or value <= above:
            wanted = [f"more than {above:g}"] if above > -math.inf else [f"{least:g} or more"] if least > -math.inf else []
            wanted += [f"at most {most:g}"] if most < math.inf else []
            raise ValueError(f"expected {' and '.join(wanted)}, got {value:g}")
        return value

    return read


def whole(least: int = 1) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"expected a whole number, {least} or more, got {shown(value)}")
        return value

    return read


def one_of(*known: str) -> Reader:
    def read(value: Any) -> str:
        if value not in known:
            raise ValueError(f"expected one of {', '.join(known)}, got {shown(value)}; {did_you_mean(value, known)}")
        return str(value)

    return read


def list_of(read_one: Reader, least: int = 0) -> Reader:
    """One value that is no list is a list of one."""

    def read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, Mapping) or value is None:
            raise ValueError(f"expected a list, got {shown(value)}")
        values = value if isinstance(value, list | tuple) else [value]
        if len(values) < least:
            raise ValueError(f"expected {least} or more, got none")
        return tuple(read_one(one) for one in values)

    return read


def between(read_one: Reader) -> Reader:
    """[least, most], of which each may be left open by ~."""

    def read(value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(f"expected two numbers, the least and the most, such as [0, 100] or [0, ~]; got {shown(value)}")
        least, most = (None if one is None else read_one(one) for one in value)
        if least is not None and most is not None and least > most:
            raise ValueError(f"the least is above the most: {shown(value)}")
        return least, most

    return read


def mapping(read_one: Reader = lambda value: value) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected keys and values, got {shown(value)}")
        return dict(_each(value, read_one))

    return read


def _each(value: Mapping[str, Any], read_one: Reader) -> Iterator[tuple[str, Any]]:
    mistakes: list[tuple[str, str]] = []
    for name, inner in value.items():
        try:
            yield str(name), read_one(inner)
        except Mistakes as found:
            mistakes += [(f"{name}.{place}", words) for place, words in found.found]
        except (ValueError, FlatoutError) as error:
            mistakes.append((str(name), str(error)))
    if mistakes:
        raise Mistakes(mistakes)


def keys_of(made: type[Any]) -> Reader:
    return lambda value: read_keys(made, value)


def either(is_first: Callable[[Any], bool], first: Reader, second: Reader) -> Reader:
    return lambda value: first(value) if is_first(value) else second(value)
