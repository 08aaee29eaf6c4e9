"""Photos kept on the device from the first time they are read: the first epoch reads them, later epochs only gather.

Keeping them costs no extra copy, since training copies them to the device anyway.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.data.cache.records import START
from flatout.data.offers import PlacedRows, Take
from flatout.data.source import Batch

_FLAT = "pixels"


class DeviceStore:
    """Photos are stored in the order they are read, so a batch of new ones is one copy. OutOfMemoryError if not all fit."""

    def __init__(self, source: PlacedRows, device: torch.device | str) -> None:
        self._source = source
        self._start = torch.zeros(len(source), dtype=torch.int64)
        self._pixels = torch.empty(int(source.sizes.sum()), dtype=torch.uint8, device=device)
        self._stored = source.laid_out(self._pixels, self._start)
        self._here = torch.zeros(len(source), dtype=torch.bool)
        self._used = 0
        self._one_at_a_time = Lock()
        self._module = None if self._pixels.device.type == "cpu" else torch.get_device_module(self._pixels.device)
        self._written: Any = None if self._module is None else self._module.current_stream().record_event()

    def photos(self, rows: Tensor) -> Tensor:
        """The photo that each row shows; it changes when a bad photo is replaced."""
        return self._source.shown(rows)

    def missing(self, rows: Tensor, photos: Tensor) -> tuple[Tensor, Tensor]:
        """The rows, and their photos, that still have to be read: each once, in any order."""
        wanted = ~self._here.index_select(0, photos)
        _, first = np.unique(rows[wanted].numpy(), return_index=True)
        return rows[wanted][first], photos[wanted][first]

    def put(self, photos: Tensor, batch: Batch) -> None:
        """Copy photos to the device on the current stream, without waiting."""
        if not len(photos):
            return
        begins, pixels = batch[START], batch[_FLAT]
        with self._one_at_a_time:
            self._after_what_was_written()
            seen_before = bool(self._here[photos].any()) or len(set(photos.tolist())) < len(photos)
            if seen_before:  # another batch has brought some of them
                sizes = self._source.sizes.index_select(0, photos).tolist()
                for photo, begin, size in zip(photos.tolist(), begins.tolist(), sizes, strict=True):
                    if not self._here[photo]:
                        self._append(photos.new_tensor([photo]), photos.new_zeros(1), pixels[begin : begin + size])
            else:
                self._append(photos, begins, pixels)
            if self._module is not None:
                stream = self._module.current_stream(self._pixels.device)
                self._pixels.record_stream(stream)  # belongs to another stream: don't reuse its memory before the copy
                self._written = stream.record_event()

    def gather(self, photos: Tensor, take: Take | None = None) -> Batch:
        """A batch of photos that are all here: pixels on the device, other columns on the host, into the tensors of `take`."""
        self._after_what_was_written()
        batch = self._source.gather(self._stored, photos)
        if take is None:
            return batch
        return {name: column if name == _FLAT else take(name, len(photos)).copy_(column) for name, column in batch.items()}

    def _append(self, photos: Tensor, begins: Tensor, pixels: Tensor) -> None:
        end = self._used + len(pixels)
        self._pixels[self._used : end].copy_(pixels, non_blocking=True)
        self._start[photos] = begins + self._used
        self._here[photos] = True
        self._used = end

    def _after_what_was_written(self) -> None:
        """Make the current stream wait for copies on other streams."""
        if self._module is not None:
            self._module.current_stream(self._pixels.device).wait_event(self._written)
