"""Photos on the device, each put there when it is first read: the first epoch reads, later ones only pick.

A store in host memory would be written and read again for every photo; this one costs the copy that training needs anyway.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

from flatout.data.source import Batch, Source
from flatout.data.stores.records import START, Take

_LARGE_BYTES = 64 << 10  # a row. Batches of smaller ones come faster than a host can name them: those are picked on the device
_FLAT = "pixels"


class Placed(Protocol):
    """A source of ragged rows whose sizes are known before they are read."""

    sizes: Tensor

    def __len__(self) -> int: ...

    def shown(self, rows: Tensor) -> Tensor:
        """The row whose content each shows: itself, or what stands in for it."""
        ...

    def row_sizes(self, rows: Tensor) -> Tensor: ...

    def laid_out(self, pixels: Tensor, start: Tensor) -> dict[str, Tensor]:
        """What `gather` picks rows from when they begin there in `pixels`."""
        ...

    def gather(self, stored: dict[str, Tensor], rows: Tensor) -> Batch: ...


def fills(source: Source, device: torch.device | str) -> bool:
    """Whether a device does well to be filled row by row, and not beforehand."""
    row_bytes = source.stored_bytes / max(1, len(source))
    return torch.device(device).type == "cuda" and hasattr(source, "laid_out") and row_bytes >= _LARGE_BYTES


class DeviceStore:
    """Rows lie in the order they came: a batch of new ones is one copy. OutOfMemoryError where there is no room for all."""

    def __init__(self, source: Placed, device: torch.device | str) -> None:
        self._source = source
        self._start = torch.zeros(len(source), dtype=torch.int64)
        self._pixels = torch.empty(int(source.sizes.sum()), dtype=torch.uint8, device=device)
        self._stored = source.laid_out(self._pixels, self._start)
        self._here = torch.zeros(len(source), dtype=torch.bool)
        self._used = 0
        self._one_at_a_time = Lock()

    def missing(self, rows: Tensor) -> Tensor:
        """Those of the rows that are to be read, each once and in no order."""
        here = self._here.index_select(0, self._source.shown(rows))
        return torch.unique(rows[~here])  # type: ignore[no-any-return,no-untyped-call,unused-ignore]

    def put(self, rows: Tensor, batch: Batch) -> None:
        """Rows as they were read, copied in the order of the current stream. Nobody waits."""
        if not len(rows):
            return
        shown, begins, pixels = self._source.shown(rows), batch[START], batch[_FLAT]
        with self._one_at_a_time:
            if bool(self._here[shown].any()) or len(set(shown.tolist())) < len(shown):  # some came by another batch meanwhile
                sizes = self._source.row_sizes(rows).tolist()
                for photo, begin, size in zip(shown.tolist(), begins.tolist(), sizes, strict=True):
                    if not self._here[photo]:
                        self._append(shown.new_tensor([photo]), shown.new_zeros(1), pixels[begin : begin + size])
            else:
                self._append(shown, begins, pixels)

    def _append(self, photos: Tensor, begins: Tensor, pixels: Tensor) -> None:
        end = self._used + len(pixels)
        self._pixels[self._used : end].copy_(pixels, non_blocking=True)
        self._start[photos] = begins + self._used
        self._here[photos] = True
        self._used = end

    def gather(self, rows: Tensor, take: Take | None = None) -> Batch:
        """Rows that are all here: the pixels whole, the rest on the host, written to where `take` says."""
        batch = self._source.gather(self._stored, self._source.shown(rows))
        if take is None:
            return batch
        return {name: column if name == _FLAT else take(name, len(rows)).copy_(column) for name, column in batch.items()}
