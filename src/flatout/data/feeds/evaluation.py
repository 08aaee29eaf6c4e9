"""All rows of a source once, for evaluation and prediction, in stored order unless any order is allowed.

If several processes evaluate together, each reads its share of the rows only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from flatout.base.errors import UsageError, did_you_mean
from flatout.data.cache.cache import Cache
from flatout.data.cache.device import DeviceStore
from flatout.data.cache.filling import TIERS, place
from flatout.data.feeds.ahead import Ahead
from flatout.data.feeds.bucketed import Bucketed
from flatout.data.feeds.pinned import spans
from flatout.data.feeds.resident import filled_by, move
from flatout.data.feeds.tuning import ReadingBudget, depth_for
from flatout.data.feeds.uplink import Uplink, next_sent, piece_rows
from flatout.data.offers import BatchPlan, RowsByLength
from flatout.data.order.draws import Sequential
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Source, Transform, apply, rehearse
from flatout.world.world import World


class EvalFeed:
    """Iterate as often as needed. In the resident tier rows stay on the device. The last batch may be short.

    With `keep`, slow rows are read once and kept where the tier keeps them: in memory, or in `cache`. With `any_order`, rows of
    differing lengths come in batches of similar length, which needs far less padding. `threads` read ahead rows that are not
    in memory, `prefetch` batches ahead; 0: one thread for each core, and a few batches more. In a `world` of several
    processes these are the rows of one process: the same number as in others or one less, none if there are too few.
    """

    def __init__(
        self,
        source: Source,
        prepare: Sequence[Transform],
        batch: int,
        device: torch.device | str,
        tier: str = "resident",
        *,
        stored: Mapping[str, Tensor] | None = None,
        keep: bool = False,
        cache: Cache | None = None,
        any_order: bool = False,
        threads: int = 0,
        prefetch: int = 0,
        world: World | None = None,
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch must be a number of rows, 1 or more, got {batch!r}")
        if tier not in TIERS:
            raise UsageError(f"unknown tier {tier!r}; {did_you_mean(tier, TIERS)}")
        self.batch = batch
        self.degraded: list[str] = []
        self._source = source
        self._prepare = tuple(prepare)
        self._threads, self._prefetch = threads, prefetch
        self._device = torch.device(device)
        self._stored: dict[str, Tensor] | None = None
        self._sequences = source.by_length if any_order and source.shapes_vary else None
        self._kept: DeviceStore | None = None
        world = world or World()
        self._low, self._high = world.share(len(source))
        self._own: Tensor | None = None  # rows of this process, if these are sequences; None: all
        if self._sequences is not None and world.data_size > 1:  # every process gets long and short ones
            by_length = self._sequences.lengths.argsort(descending=True, stable=True)
            self._own = by_length[world.data_rank :: world.data_size]
        placed = filled_by(source, self._device) if tier == "resident" and stored is None else None
        if placed is not None:
            self._kept = DeviceStore(placed, self._device)
        elif tier == "resident":
            self._stored = move(source.stored() if stored is None else stored, self._device)
        else:
            narrow, widen = source.compact()
            self._source = place(narrow, tier, cache) if keep and (tier == "pinned" or cache is not None) else narrow
            self._prepare = (*widen, *self._prepare)
        first = self._source.read(torch.zeros(1, dtype=torch.int64))
        rehearse(self._prepare, move(first, self._device))

    def __len__(self) -> int:
        if self._sequences is not None:
            buckets = self._buckets(self._sequences)
            return 0 if buckets is None else buckets.epoch_batches
        return -(-(self._high - self._low) // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        if self._sequences is not None:
            return self._by_length(self._sequences)
        return self._from_device(self._stored) if self._stored is not None else self._from_host()

    def any_row(self) -> Batch:
        """The first row of the source, for a process that has to call the model and has no row left."""
        row = torch.zeros(1, dtype=torch.int64)
        return self._prepared(move(self._source.read(row), self._device), row.to(self._device))

    def close(self) -> None:
        """Rows that were read into a cache stay there."""
        self._source.release()

    def _by_length(self, source: RowsByLength) -> Iterator[Batch]:
        if (buckets := self._buckets(source)) is None:
            return
        made = Bucketed(source, buckets, self._device, self._prepare, 0, stored=self._stored)
        for planned in made.plan(0):
            yield made.make(0, planned.rows if self._own is None else self._own[planned.rows], planned.length)

    def _buckets(self, source: RowsByLength) -> BatchPlan | None:
        """None: this process has no rows."""
        if self._own is None:
            return source.buckets(self.batch)
        return source.buckets_of(self._own, self.batch) if len(self._own) else None

    def _from_device(self, stored: Mapping[str, Tensor]) -> Iterator[Batch]:
        for start, stop in spans(self._low, self._high, self.batch):
            rows = torch.arange(start, stop, device=self._device)
            yield self._prepared(self._source.gather(stored, rows), rows)

    def _from_host(self) -> Iterator[Batch]:
        alone = self._source.alone  # it draws from the random generators of this process, so nothing may run in parallel
        workers = 1 if alone or self._source.in_memory else self._threads or ReadingBudget.here().cores
        uplink = Uplink(self._source, Sequential(len(self._source)), self.batch, self._device, workers, kept=self._kept)
        self.degraded = [*uplink.transfer.degraded, *self._source.degraded]
        pieces = -(-self.batch // piece_rows(self._source, self.batch))
        planned = uplink.pieces(spans(self._low, self._high, self.batch))
        depth = 1 if alone else self._prefetch * pieces or depth_for(workers, pieces)
        ahead = Ahead(uplink.carry, planned, depth=depth, workers=workers)
        try:
            for _ in range(len(self)):
                _, sent = next_sent(ahead)
                uplink.transfer.receive(sent)
                yield self._prepared(sent.columns, sent.rows)
        finally:
            ahead.close()

    def _prepared(self, batch: Batch, rows: Tensor) -> Batch:
        return apply(self._prepare, batch, Keys(0, torch.zeros_like(rows), rows)) if self._prepare else batch


def eval_batches(
    source: Source, prepare: Sequence[Transform], batch: int, device: torch.device | str, tier: str = "resident"
) -> Iterator[Batch]:
    return iter(EvalFeed(source, prepare, batch, device, tier))
