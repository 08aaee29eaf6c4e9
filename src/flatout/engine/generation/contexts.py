"""The logits of the next token: from the whole text each time, or from the new token and a cache of the tokens before it.

A model takes `window` tokens. A longer text is continued from its last tokens: as soon as it is longer than the window, the
older half of the window is dropped, and the next tokens fill it again. Dropping one token at a time would change the position
of every token in each step, and no cache would ever be valid. Both ways use the same tokens, so they make the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from flatout.base.errors import ModelError
from flatout.data.fitted.device import DevicePart
from flatout.engine.generation.growing import GrowingText
from flatout.engine.precision import autocast
from flatout.models.gpt import GPT
from flatout.objectives.inputs import Inputs

_MOST_CACHE_BYTES = 1 << 30
_MOST_ROWS = 64
_WHOLE_ROWS = 16


class NextLogits(Protocol):
    """Given the texts of one batch again and again, each one token longer than before; those that ended are left out."""

    window: int

    def rows_at_once(self, longest: int) -> int:
        """How many texts of up to this length fit into memory together."""
        ...

    def next_logits(self, texts: Sequence[GrowingText]) -> Tensor:
        """[rows, vocabulary]"""
        ...

    def alone(self, text: GrowingText) -> Tensor:
        """[vocabulary], computed from the whole text without others in the batch."""
        ...


def context_start(length: int, window: int) -> int:
    """How many of a text's first tokens the model no longer sees."""
    if length <= window:
        return 0
    dropped = window - window // 2
    return -(-(length - window) // dropped) * dropped


class WholeTexts:
    """Any model: every token is computed again in each step. Rows of one length share a call, so nothing is padded."""

    def __init__(
        self, model: nn.Module, inputs: Inputs, device_part: DevicePart, window: int, vocabulary: int, precision: str
    ) -> None:
        self.model, self.window, self.vocabulary = model, window, vocabulary
        self.device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
        self.precision = precision
        self._inputs, self._device_part = inputs, device_part

    def rows_at_once(self, longest: int) -> int:
        return _WHOLE_ROWS

    def next_logits(self, texts: Sequence[GrowingText]) -> Tensor:
        contexts = [text.ids[context_start(len(text.ids), self.window) :] for text in texts]
        by_length: dict[int, list[int]] = {}
        for row, ids in enumerate(contexts):
            by_length.setdefault(len(ids), []).append(row)
        found = [self._last(torch.tensor([contexts[row] for row in rows])) for rows in by_length.values()]
        order = [row for rows in by_length.values() for row in rows]
        return torch.cat(found)[torch.tensor(order, device=self.device).argsort()]

    def alone(self, text: GrowingText) -> Tensor:
        return self.next_logits([text])[0]

    @torch.inference_mode()
    def _last(self, ids: Tensor) -> Tensor:
        rows, length = ids.shape
        x = ids.to(self.device)
        places = torch.arange(length, device=self.device).expand_as(x).contiguous()
        lengths = torch.full((rows,), length, device=self.device)
        batch = self._device_part({"x": x, "length": lengths, "documents": torch.zeros_like(x), "positions": places})
        with autocast(self.precision, self.device):
            output = self._inputs.call(self.model, batch)
        if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[:2] != ids.shape:
            came = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ModelError(
                f"generate needs logits [rows, length, vocabulary] from the model, [{rows}, {length}, {self.vocabulary}] "
                f"for these tokens; got {came}"
            )
        return output[:, -1, : self.vocabulary]


class CachedTexts:
    """The built-in GPT: the keys and values of earlier tokens are kept, and a step computes one token of each text."""

    def __init__(self, model: GPT, whole: WholeTexts, tokens: int) -> None:
        """`tokens`: how many a text may grow."""
        self.window = whole.window
        self._model, self._whole, self._tokens = model, whole, tokens
        self._cache = model.new_cache(0, 0)
        self._numbers: list[int] = []  # the texts of the cache's rows
        self._starts: list[int] = []  # where their contexts begin

    def rows_at_once(self, longest: int) -> int:
        row_bytes = self._model.cache_bytes_per_token() * min(longest, self.window)
        return max(1, min(_MOST_ROWS, _MOST_CACHE_BYTES // row_bytes))

    def alone(self, text: GrowingText) -> Tensor:
        return self._whole.alone(text)

    @torch.inference_mode()
    def next_logits(self, texts: Sequence[GrowingText]) -> Tensor:
        numbers = [text.number for text in texts]
        starts = [context_start(len(text.ids), self.window) for text in texts]
        with autocast(self._whole.precision, self._whole.device):
            if not set(numbers) <= set(self._numbers):
                longest = max(len(text.ids) for text in texts)
                self._cache = self._model.new_cache(len(texts), longest + self._tokens)
                logits = self._read(texts, starts, range(len(texts)))
            else:
                if numbers != self._numbers:
                    rows = [self._numbers.index(number) for number in numbers]
                    self._cache.keep(rows)
                    self._starts = [self._starts[row] for row in rows]
                slid = [row for row, (before, now) in enumerate(zip(self._starts, starts, strict=True)) if before != now]
                logits = self._next(texts, starts, slid)
        self._numbers, self._starts = numbers, starts
        return logits[:, : self._whole.vocabulary]

    def _next(self, texts: Sequence[GrowingText], starts: Sequence[int], slid: Sequence[int]) -> Tensor:
        if len(slid) == len(texts):
            return self._read(texts, starts, slid)
        for row in slid:
            self._cache.lengths[row] = 0  # so that the step below finds room; what it writes there is replaced
        logits = self._model.read_next(self._tensor([text.ids[-1] for text in texts]), self._cache)
        if slid:
            logits[self._tensor(slid)] = self._read(texts, starts, slid)
        return logits

    def _read(self, texts: Sequence[GrowingText], starts: Sequence[int], rows: Sequence[int]) -> Tensor:
        contexts = [texts[row].ids[starts[row] :] for row in rows]
        lengths = [len(ids) for ids in contexts]
        x = self._tensor([ids + [0] * (max(lengths) - len(ids)) for ids in contexts])
        return self._model.read(x, lengths, self._cache, list(rows))

    def _tensor(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, device=self._whole.device)
