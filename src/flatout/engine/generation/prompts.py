"""Prompts in any form to token ids, and what was made back in the form of the prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.fitted.token_rows import TextCode, row_ids
from flatout.engine.generation.growing import TextPart

# the ids of the prompts; the code of their text, None if ids were given
WriteParts = Callable[[list[list[int]], TextCode | None], Iterator[TextPart]]
_FORMS = "generate takes a text, a list of texts, a row of token ids, or a list of such rows"


def generated(prompt: Any, code: TextCode, write: WriteParts, *, stream: bool, stops: bool) -> Any:
    """The new text of one prompt, or a list of them for several; ids if the prompts are ids.

    `stream`: an iterator of its pieces; for several prompts, of pairs (number of the prompt, piece).
    """
    several, ids, is_text = _parsed(prompt, code)
    if stops and not is_text:
        raise UsageError("stop is a text, and the prompts are token ids: give the prompts as text, or leave stop out")
    parts = write(ids, code if is_text else None)
    if stream:
        return _streamed(parts, several, is_text)
    texts: list[list[Any]] = [[] for _ in ids]
    for part in parts:
        texts[part.number].append(part.text if is_text else part.token)
    made = ["".join(pieces) if is_text else [token for token in pieces if token is not None] for pieces in texts]
    return made if several else made[0]


def _streamed(parts: Iterator[TextPart], several: bool, is_text: bool) -> Iterator[Any]:
    for part in parts:
        piece: Any = part.text if is_text else part.token
        if piece is not None and piece != "":
            yield (part.number, piece) if several else piece


def _parsed(prompt: Any, code: TextCode) -> tuple[bool, list[list[int]], bool]:
    """Whether there are several prompts; their ids; whether they are texts."""
    if isinstance(prompt, str):
        return False, _encoded([prompt], code), True
    if isinstance(prompt, Tensor | np.ndarray):
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise DataError(f"{_FORMS}; got {type(prompt).__name__}")
    if not len(prompt):
        raise DataError("there are no prompts: give a text, or a list with at least one")
    if isinstance(prompt[0], str):
        return True, _encoded(prompt, code), True
    several = not isinstance(prompt[0], int | np.integer)
    return several, [_checked_ids(row, number, code) for number, row in enumerate(prompt if several else [prompt])], False


def _encoded(texts: Sequence[str], code: TextCode) -> list[list[int]]:
    rows = [ids.tolist() for ids in code.encode(texts)]
    for number, ids in enumerate(rows):
        if not ids:
            raise DataError(f"prompt {number} is empty: give at least one character to continue from, such as a line break")
    return rows


def _checked_ids(row: Any, number: int, code: TextCode) -> list[int]:
    ids, wrong = row_ids(row)
    if wrong:
        raise DataError(f"prompt {number}: {wrong}")
    if ids.min() < 0 or ids.max() >= code.vocabulary:
        strange = ids[(ids < 0) | (ids >= code.vocabulary)][0]
        raise DataError(f"prompt {number}: token ids are 0 to {code.vocabulary - 1}, got {strange}")
    found: list[int] = ids.tolist()
    return found
