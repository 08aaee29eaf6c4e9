"""Token ids to text as they are made, one by one: whole characters only, and the same text as all ids at once."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from flatout.base.errors import DataError
from flatout.data.fitted.token_rows import TextCode
from flatout.data.fitted.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"


class TextPieces(Protocol):
    """`add` returns the text that is complete with this id, "" if none is; `rest` what is left at the end."""

    def add(self, token: int) -> str: ...

    def rest(self) -> str: ...


def text_pieces(code: TextCode, before: Sequence[int]) -> TextPieces:
    """For the ids that follow `before`."""
    if code.tokenizer is not None:
        return _TokenizerPieces(code.tokenizer, before)
    if code.in_bytes:
        return _BytePieces()
    if code.alphabet is None:
        raise DataError("the model was trained on token ids, and no tokenizer came with them: its tokens have no text")
    return _LetterPieces(code.alphabet)


class _LetterPieces:
    def __init__(self, alphabet: str) -> None:
        self._alphabet = alphabet

    def add(self, token: int) -> str:
        return self._alphabet[token] if token < len(self._alphabet) else _INCOMPLETE  # a vocabulary may be larger

    def rest(self) -> str:
        return ""


class _BytePieces:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if token < 256 else _INCOMPLETE

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


class _TokenizerPieces:
    """A token's text depends on the token before it (a leading space), and several tokens may make one character.

    So a few tokens before the new ones are decoded with them, and only the text that they add is given out.
    """

    _BEFORE = 8

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before[-self._BEFORE :])
        self._known = tokenizer.decode(self._ids)

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(_INCOMPLETE):
            return ""
        return self._given_out(text)

    def rest(self) -> str:
        return self._given_out(self._tokenizer.decode(self._ids))

    def _given_out(self, text: str) -> str:
        new = text[len(self._known) :]
        self._ids = self._ids[-self._BEFORE :]
        self._known = self._tokenizer.decode(self._ids)
        return new
