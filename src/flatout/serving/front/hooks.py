"""A person's own Python around the model: `before` changes raw rows, `after` changes answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

RowsHook = Callable[[Any, Mapping[str, str]], Any]


@dataclass(frozen=True)
class RowHooks:
    """Both take columns by name and the request's headers, in lower case, and return columns by name.

    `before` gets raw columns: lists of numbers, texts, or the bytes of photos. `after` gets NumPy arrays, and `class` as a
    list of texts. They run in threads, several at a time.
    """

    before: RowsHook | None = None
    after: RowsHook | None = None


def header_texts(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
