"""One text that grows token by token, and what of it can be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flatout.data.fitted.text_pieces import TextPieces, text_pieces
from flatout.data.fitted.token_rows import TextCode
from flatout.engine.generation.choosing import draws_of
from flatout.engine.generation.options import GenerateOptions
from flatout.engine.generation.stopping import HeldText

Ended = Literal["tokens", "stop", "end of text"]


@dataclass(frozen=True)
class TextPart:
    """The next part of text `number`. `token` is None if the token that ended the text is not part of it."""

    number: int
    text: str
    token: int | None
    ended: Ended | None = None


class GrowingText:
    """`ids` has the prompt and what was made. `code` is None if tokens have no text."""

    def __init__(self, number: int, prompt: Sequence[int], options: GenerateOptions, code: TextCode | None) -> None:
        self.number = number
        self.ids = [int(token) for token in prompt]
        self.made = 0
        self.ended: Ended | None = None
        self._tokens = options.tokens
        self._pieces: TextPieces | None = None if code is None else text_pieces(code, self.ids)
        self._held = HeldText(options.stops)
        tokenizer = None if code is None else code.tokenizer
        self._end_of_text = None if tokenizer is None else tokenizer.end_of_text("auto")
        self._draws = None if options.most_likely else draws_of(options.seed, number, options.tokens)

    @property
    def draw(self) -> Tensor:
        """The random number of the next token."""
        assert self._draws is not None
        return self._draws[self.made]

    def add(self, token: int) -> TextPart:
        if token == self._end_of_text:
            self.ended = "end of text"
            return TextPart(self.number, self._remains(), None, self.ended)
        self.ids.append(token)
        self.made += 1
        text, stopped = self._held.add("" if self._pieces is None else self._pieces.add(token))
        if stopped:
            self.ended = "stop"
        elif self.made == self._tokens:
            self.ended = "tokens"
            text += self._remains()
        return TextPart(self.number, text, token, self.ended)

    def _remains(self) -> str:
        text, stopped = self._held.add("" if self._pieces is None else self._pieces.rest())
        return text if stopped else text + self._held.rest()
