"""The resident tier: all rows are copied to the device once, and each batch is picked there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.feeds.contract import CapturableFeed, FeedOptions
from flatout.data.offers import PlacedRows
from flatout.data.order.keyed import Keys, Lookahead, Sampler, block_rows
from flatout.data.source import Batch, Source, apply, rehearse

_LARGE_BYTES = 64 << 10  # per row. Batches of smaller rows are used faster than a host can look rows up


def filled_by(source: Source, device: torch.device | str) -> PlacedRows | None:
    """What fills the device row by row during the first epoch. None: all rows are copied before training."""
    if torch.device(device).type != "cuda" or source.placed is None:
        return None
    return source.placed if source.stored_bytes / max(1, len(source)) >= _LARGE_BYTES else None


class ResidentFeed(CapturableFeed):
    """Serves batches by `next`, or inside of a CUDA graph by `capture_next`. `position` counts the samples served."""

    def __init__(self, source: Source, sampler: Sampler, options: FeedOptions) -> None:
        self.batch = options.batch
        self.position = 0
        self._device = options.device
        self._gather = source.gather
        self._sampler = sampler
        self._transforms = options.transforms
        self._seed = options.seed
        self.stored = move(source.stored(), self._device)
        self._ahead = Lookahead(sampler, self._device)
        self._static: _Static | None = None
        rehearse(self._transforms, self._gather(self.stored, torch.zeros(1, dtype=torch.int64, device=self._device)))

    def next(self, size: int | None = None) -> Batch:
        """The batch at `position`, which moves on by its size. Never waits for the device."""
        size = self.batch if size is None else size
        start, stop = self.position, self.position + size
        rows = self._ahead.rows(start, stop)
        batch = self._gather(self.stored, rows)
        if self._transforms:
            batch = apply(self._transforms, batch, Keys(self._seed, self._ahead.visits(start, stop), rows))
        self.position = stop
        if self._static is not None:
            self._static.skip(size)
            self._refill_if_used_up()
        return batch

    def seek(self, position: int) -> None:
        self.position = position
        if self._static is not None:
            self.load()

    def close(self) -> None:
        """Nothing runs in the background here."""

    def load(self, steps: int | None = None) -> None:
        """Fill the static buffers of `capture_next` for the current position. The first call sets how many steps they hold.

        Later calls write to the same memory, after the work that is on the current stream: replay on that stream. Call it once
        before the capture, and again after warm-up steps, which advance the cursor on the device.
        """
        if self._static is None:
            steps = steps or -(-block_rows(self.batch, self._device) // self.batch)
            self._static = _Static(self.batch, steps, self._device, with_visits=bool(self._transforms))
        elif steps is not None and steps > self._static.steps:
            held = self._static.steps
            raise UsageError(f"load(steps={steps}): the buffers hold {held} steps and can't move under a captured graph")
        self._static.fill(self._sampler, self.position)

    def capture_next(self) -> Batch:
        """The batch at the cursor on the device, which it advances. No value comes from the host, so a graph can hold it."""
        if self._static is None:
            raise UsageError("call load() before capture_next(): it makes the buffers that the graph reads rows from")
        rows, visits = self._static.take()
        batch = self._gather(self.stored, rows)
        return apply(self._transforms, batch, Keys(self._seed, visits, rows)) if self._transforms else batch

    def bring(self) -> None:
        """Nothing to do: the graph picks its rows."""

    def replayed(self) -> None:
        """Call after each replay of a graph that holds one `capture_next`."""
        self.position += self.batch
        self._refill_if_used_up()

    def _refill_if_used_up(self) -> None:
        if self._static is not None and self.position + self.batch > self._static.stop:
            self.load()


class _Static:
    """Rows and visits at fixed addresses, and a cursor: the places in them that the next step reads."""

    def __init__(self, batch: int, steps: int, device: torch.device, *, with_visits: bool) -> None:
        """`with_visits`: only augmentation needs them. Without it `take` returns the rows in their place."""
        self.batch, self.steps, self.stop = batch, steps, 0
        self._first_places = torch.arange(batch, device=device)
        self._places = self._first_places.clone()
        self._rows = torch.zeros(steps * batch, dtype=torch.int64, device=device)
        self._visits = torch.zeros_like(self._rows) if with_visits else None

    def fill(self, sampler: Sampler, position: int) -> None:
        self.stop = position + len(self._rows)
        self._rows.copy_(sampler.rows(position, self.stop, self._rows.device))
        if self._visits is not None:
            self._visits.copy_(sampler.visits(position, self.stop, self._rows.device))
        self._places.copy_(self._first_places)

    def take(self) -> tuple[Tensor, Tensor]:
        rows = self._rows.index_select(0, self._places)
        visits = rows if self._visits is None else self._visits.index_select(0, self._places)
        self._places.add_(self.batch)
        return rows, visits

    def skip(self, size: int) -> None:
        self._places.add_(size)


def move(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
