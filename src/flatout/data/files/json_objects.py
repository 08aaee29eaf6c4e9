"""One JSON object from a line of a file. Duplicate keys are an error."""

from __future__ import annotations

import json
from typing import Any


def parse_object(content: bytes, numbers: bool = False) -> dict[str, Any]:
    """ValueError says what is wrong. With `numbers`, NaN and Infinity are errors too: they are not JSON."""
    try:
        found = json.loads(content, object_pairs_hook=_pairs, parse_constant=_no_constant if numbers else None)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start} of the line)") from error
    except _Twice as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("not JSON: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {type(found).__name__}")
    return found


class _Twice(ValueError):
    pass


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise _Twice(f"the key {twice!r} occurs twice")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number: write null for a missing value")
