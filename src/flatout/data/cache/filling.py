"""A source that keeps its rows: the first read of a row goes to the source, later reads copy the kept row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import UsageError, did_you_mean
from flatout.data.cache.cache import Cache, cache_key
from flatout.data.cache.mapped import MappedStore
from flatout.data.cache.memory import MemoryStore, RowStore
from flatout.data.cache.records import START, RecordLayout, plain
from flatout.data.files.bad import Bad
from flatout.data.files.room import empty
from flatout.data.offers import Take, fill_buffers
from flatout.data.source import Batch, Column, Source

TIERS = ("resident", "pinned", "mapped", "streamed")
_ROWS_AT_ONCE = 256


class FillingSource(Source):
    """Gives the same rows as its source, bit for bit, whether they are kept or not."""

    def __init__(self, source: Source, store: RowStore | None, degraded: tuple[str, ...] = ()) -> None:
        """With store=None every row is read from the source; `degraded` says why."""
        self.source = source
        self.store = store
        self._layout = RecordLayout.of(source.schema)
        self._degraded = degraded
        self._at_hand: Mapping[str, Tensor] | None = None

    @property
    def degraded(self) -> list[str]:
        return [*self._degraded, *self.source.degraded, *(self.store.degraded if self.store is not None else ())]

    @property
    def alone(self) -> bool:
        return self.source.alone

    @property
    def workers(self) -> int | None:
        return self.source.workers

    @property
    def piece_rows(self) -> int | None:
        return self.source.piece_rows

    @property
    def sizes(self) -> Tensor | None:
        return self.source.sizes

    def row_sizes(self, rows: Tensor) -> Tensor:
        return self.source.row_sizes(rows)

    @property
    def bad(self) -> Bad | None:
        return self.source.bad

    @property
    def complete(self) -> bool:
        return self.store is not None and self.store.complete

    @property
    def schema(self) -> dict[str, Column]:
        return self.source.schema

    def __len__(self) -> int:
        return len(self.source)

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    @property
    def made_by(self) -> str:
        return self.source.made_by

    def blocks(self) -> tuple[int, ...]:
        return self.source.blocks()

    def column(self, name: str) -> Tensor:
        return self.source.column(name)

    @property
    def tokens_per_row(self) -> float:
        return self.source.tokens_per_row

    @property
    def stored_bytes(self) -> int:
        return self.source.stored_bytes

    def read(self, rows: Tensor) -> Batch:
        return self.read_with(rows, None)

    def read_into(self, rows: Tensor, batch: Batch) -> None:
        """Fills the first part of a ragged column's buffer, as much as the rows need."""
        self.read_with(rows, fill_buffers(batch))

    def read_with(self, rows: Tensor, take: Take | None) -> Batch:
        """Like `read`, into the tensors that `take(column, length)` returns, without another copy of kept rows."""
        store = self._usable()
        if store is None:
            return self._fresh(rows, take)
        if store.sound and rows.numel():
            return store.read(rows, take)
        here = store.has(rows)
        kept = np.count_nonzero(here.numpy())
        if kept == 0:
            return self._fresh(rows, take)
        if kept == len(rows):
            return store.read(rows, take)
        batch = self._merged(here, store.read(rows[here]), self._fresh(rows[~here], None))
        return batch if take is None else _copied(batch, take)

    def stored(self) -> dict[str, Tensor]:
        """All rows. Missing rows are read and kept first."""
        store = self._usable()
        if store is not None:
            for rows in torch.arange(len(self)).split(_ROWS_AT_ONCE):
                missing = rows[~store.has(rows)]
                if len(missing):
                    self._fresh(missing, None)
            store.flush()
            if self.complete:
                return store.stored()
        return self.read(torch.arange(len(self)))

    def _usable(self) -> RowStore | None:
        """None if rows change between visits. A source may discover that late; then rows kept before are not used again."""
        return None if self.source.varies else self.store

    def _fresh(self, rows: Tensor, take: Take | None) -> Batch:
        batch = self.source.read(rows) if take is None else self.source.read_with(rows, take)
        store = self._usable()
        if store is not None:
            store.put(rows, batch, self.source.stand_ins(rows))
        return batch

    def at_hand(self) -> Mapping[str, Tensor] | None:
        gathers = not self._layout.ragged or type(self.source).gather is not Source.gather
        if self._at_hand is None and gathers and (store := self._usable()) is not None and store.in_memory and store.complete:
            self._at_hand = self.stored()
        return self._at_hand

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        return self.source.gather(stored, rows)

    def release(self) -> None:
        """Close the store; a cache on disk keeps what was read."""
        if self.store is not None:
            self.store.close()

    def _merged(self, here: Tensor, kept: Batch, fresh: Batch) -> Batch:
        places = here.nonzero().squeeze(1), (~here).nonzero().squeeze(1)
        merged: Batch = {}
        for name, column in self._layout.fixed.items():
            out = empty((len(here), *column.shape), column.dtype)
            for place, part in zip(places, (kept, fresh), strict=True):
                out[place] = part[name]
            merged[name] = out
        if not self._layout.ragged:
            return merged
        sizes = torch.empty(len(here), dtype=torch.int64)
        for place, part in zip(places, (kept, fresh), strict=True):
            sizes[place] = torch.from_numpy(self._layout.sizes(part, len(place)))
        merged.update(self._layout.flat(sizes.numpy()))
        for place, part in zip(places, (kept, fresh), strict=True):
            froms, tos, counts = part[START].tolist(), merged[START][place].tolist(), sizes[place].tolist()
            for name in self._layout.ragged:
                source, target = plain(part[name]), plain(merged[name])
                for begin, end, count in zip(froms, tos, counts, strict=True):
                    target[end : end + count] = source[begin : begin + count]
        return merged


def _copied(batch: Batch, take: Take) -> Batch:
    return {name: take(name, len(column)).copy_(column) for name, column in batch.items()}


def place(
    source: Source,
    tier: str,
    cache: Cache | None = None,
    *,
    limit_bytes: int | None = None,
    preparation: str = "",
) -> Source:
    """The source, with its rows kept as the tier says. Call `release` of the result when done.

    `limit_bytes` limits what is kept in memory; without it `streamed` keeps nothing. Rows that are in memory already
    (`in_memory`) are not kept twice, and rows that change between visits (`varies`) are never kept.
    """
    if tier not in TIERS:
        raise UsageError(f"unknown tier {tier!r}; {did_you_mean(tier, TIERS)}")
    if tier == "resident" or source.in_memory or source.varies:
        return source
    if tier == "streamed":
        return FillingSource(source, MemoryStore(source, limit_bytes)) if limit_bytes else source
    if tier == "pinned":
        return FillingSource(source, MemoryStore(source, limit_bytes))
    if cache is None:
        raise UsageError("tier mapped needs a cache folder: set cache, or use tier streamed")
    entry = cache.build(cache_key(source, preparation), source.schema, len(source))
    if entry is None:
        return FillingSource(source, None, tuple(cache.degraded))
    return FillingSource(source, MappedStore(entry, source, compression=cache.compression))
