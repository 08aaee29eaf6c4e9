"""One JSON object, as a line of a file holds it. What JSON does not say, or says twice, is no object here."""

from __future__ import annotations

import json
from typing import Any


def parse_object(content: bytes, numbers: bool = False) -> dict[str, Any]:
    """ValueError says in words what is wrong. With `numbers`, NaN and Infinity, which JSON has not, are wrong too."""
    try:
        found = json.loads(content, object_pairs_hook=_pairs, parse_constant=_no_constant if numbers else None)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start} of the line)") from error
    except _Twice as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("not JSON: nested deeper than it can be read") from error
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
        raise _Twice(f"the key {twice!r} comes twice: which of its values counts is not said")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON: write null for a missing one")
