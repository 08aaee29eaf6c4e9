"""Photos on the device, each put there when it is first read: the first epoch reads, later ones only pick.

A store in host memory would be written and read again for every photo; this one costs the copy that training needs anyway.
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
    """Photos lie in the order they came: a batch of new ones is one copy. OutOfMemoryError where there is no room for all."""

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
        """What each row shows as of now."""
        return self._source.shown(rows)

    def missing(self, rows: Tensor, photos: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the rows, and their photos, that are to be read: each once and in no order."""
        wanted = ~self._here.index_select(0, photos)
        _, first = np.unique(rows[wanted].numpy(), return_index=True)
        return rows[wanted][first], photos[wanted][first]

    def put(self, photos: Tensor, batch: Batch) -> None:
        """As they were read, copied in the order of the current stream. Nobody waits."""
        if not len(photos):
            return
        begins, pixels = batch[START], batch[_FLAT]
        with self._one_at_a_time:
            self._after_what_was_written()
            if bool(self._here[photos].any()) or len(set(photos.tolist())) < len(
                photos
            ):  # some came by another batch meanwhile
                sizes = self._source.sizes.index_select(0, photos).tolist()
                for photo, begin, size in zip(photos.tolist(), begins.tolist(), sizes, strict=True):
                    if not self._here[photo]:
                        self._append(photos.new_tensor([photo]), photos.new_zeros(1), pixels[begin : begin + size])
            else:
                self._append(photos, begins, pixels)
            if self._module is not None:
                stream = self._module.current_stream(self._pixels.device)
                self._pixels.record_stream(stream)  # not this stream's: its memory is not to be reused before the copy
                self._written = stream.record_event()

    def gather(self, photos: Tensor, take: Take | None = None) -> Batch:
        """Photos that are all here: the pixels whole, the rest on the host, written to where `take` says."""
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
        """By whatever stream: the current one goes on after it."""
        if self._module is not None:
            self._module.current_stream(self._pixels.device).wait_event(self._written)
