"""Rows of tokens of different lengths, concatenated in memory, and padded when they are picked."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flatout.data.offers import RowsByLength
from flatout.data.source import Batch, Column, Schema, Source, hash_tensors
from flatout.data.sources.texts.buckets import MULTIPLE, Buckets
from flatout.data.sources.texts.packing import IGNORED, widen


class SequenceSource(Source):
    """Rows of different lengths, concatenated. A row is padded to the longest, or with `padded` to a length of the plan.

    Columns: x, `length`, and y. Without a given y, the target of each token is the next token of its row.
    """

    def __init__(
        self,
        tokens: Tensor,
        lengths: Tensor,
        y: Tensor | None = None,
        pad: int = 0,
        *,
        longest: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        """`tokens` come from `packing.as_tensor`; `longest` is that of all parts of the data.

        With `batch_tokens`, a training batch has at most that many tokens, including padding.
        """
        self._batch_tokens = batch_tokens
        self._buckets: tuple[tuple[int, ...], Buckets] | None = None  # the last ones asked for
        self._stored = {"tokens": tokens, "start": lengths.cumsum(0) - lengths, "length": lengths}
        if y is not None:
            self._stored["y"] = y
        self._longest, self._pad = longest or int(lengths.max()), pad

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def lengths(self) -> Tensor:
        return self._stored["length"]

    @property
    def schema(self) -> dict[str, Column]:
        row, number = Column(torch.int64, (self._longest,)), Column(torch.int64, ())
        y = self._stored.get("y")
        return {"x": row, "length": number, "y": row if y is None else Column(y.dtype, tuple(y.shape[1:]))}

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens_per_row(self) -> float:
        return float(self.lengths.double().mean())

    @property
    def by_length(self) -> RowsByLength:
        return self

    @property
    def batch_tokens(self) -> int | None:
        return self._batch_tokens

    def rows_per_batch(self, batch: int) -> float:
        return batch if self.batch_tokens is None else len(self) / self.buckets(batch).epoch_batches

    def stored_rows(self, batch: int) -> int:
        return batch if self.batch_tokens is None else min(batch, max(1, self.batch_tokens // self._longest))

    def typical_batch(self, batch: int) -> tuple[int, Schema]:
        if self.batch_tokens is None:
            return batch, self.schema
        buckets = self.buckets(batch)
        rows = len(self) / buckets.epoch_batches
        length = max(1, round(int(self.lengths.sum()) / (1 - buckets.padding) / len(self)))
        whole, cut = (self._longest,), (length,)
        columns = {name: Column(col.dtype, cut) if col.shape == whole else col for name, col in self.schema.items()}
        return max(1, round(rows)), columns

    def padded_to(self, longest: int) -> SequenceSource:
        """The same rows for a model that takes so many tokens. Longer rows stay longer, and don't fit."""
        tokens, lengths, y = (self._stored.get(name) for name in ("tokens", "length", "y"))
        assert tokens is not None and lengths is not None
        longest = max(longest, int(lengths.max()))
        return SequenceSource(tokens, lengths, y, self._pad, longest=longest, batch_tokens=self.batch_tokens)

    def buckets(self, batch: int, seed: int = 0, world: int = 1, tokens: int | None = None) -> Buckets:
        """Batches of at most `batch` rows and `tokens` tokens (by default its own limit), on each of `world` processes."""
        most = self._most_tokens() if tokens is None else tokens
        asked = batch, seed, world, most
        if self._buckets is None or self._buckets[0] != asked:
            self._buckets = asked, Buckets(self.lengths, most * world, seed, rows=batch * world)
        return self._buckets[1]

    def buckets_of(self, rows: Tensor, batch: int) -> Buckets:
        """Batches of some rows; a plan's rows are places in `rows`. No batch is larger than one of all rows."""
        return Buckets(self.lengths[rows], self._most_tokens(), rows=batch)

    def _most_tokens(self) -> int:
        assert self.batch_tokens is not None
        padded = -(-int(self.lengths.max()) // MULTIPLE) * MULTIPLE
        return max(self.batch_tokens, padded)  # a validation row may be longer

    @property
    def stored_bytes(self) -> int:
        return sum(column.nbytes for column in self._stored.values())

    def read(self, rows: Tensor) -> Batch:
        return self.gather(self._stored, rows)

    def stored(self) -> dict[str, Tensor]:
        return dict(self._stored)

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        return self.padded(stored, rows, self._longest)

    def padded(self, stored: Mapping[str, Tensor], rows: Tensor, length: int) -> Batch:
        """Like `gather`, with x of `length` tokens: that of a plan, or any that fits these rows."""
        tokens = stored["tokens"]
        start, lengths = stored["start"].index_select(0, rows).unsqueeze(1), stored["length"].index_select(0, rows)
        places = torch.arange(length + 1, device=rows.device)
        taken = tokens.take((start + places).clamp_(max=len(tokens) - 1))
        inside = places < lengths.unsqueeze(1)
        wide = widen(taken)
        x = torch.where(inside, wide, self._pad)[:, :-1].contiguous()
        if "y" in stored:
            return {"x": x, "length": lengths, "y": stored["y"].index_select(0, rows)}
        return {"x": x, "length": lengths, "y": torch.where(inside, wide, IGNORED)[:, 1:].contiguous()}

    def fingerprint(self) -> str:
        tokens = "" if self.batch_tokens is None else f"-{self.batch_tokens}"
        return f"{hash_tensors(self._stored)}-{self._pad}{tokens}"
