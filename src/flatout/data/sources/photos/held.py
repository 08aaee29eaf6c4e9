"""Decoded photos in memory, concatenated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flatout.data.source import Batch, Column, Source, hash_tensors

_PER_PHOTO = ("start", "height", "width")


class HeldPhotos(Source):
    """`pixels` of all photos, flat; `start`, `height` and `width` of each."""

    def __init__(self, photos: Mapping[str, Tensor]) -> None:
        self._photos = dict(photos)

    @property
    def schema(self) -> dict[str, Column]:
        pixels = Column(torch.uint8, (), ragged=len(self._photos["pixels"]) / len(self))
        return {"pixels": pixels, **{name: Column(torch.int64, ()) for name in _PER_PHOTO}}

    def __len__(self) -> int:
        return len(self._photos["start"])

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def stored_bytes(self) -> int:
        return sum(column.nbytes for column in self._photos.values())

    def read(self, rows: Tensor) -> Batch:
        return self.gather(self._photos, rows)

    def stored(self) -> dict[str, Tensor]:
        return dict(self._photos)

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        """The pixels stay as they are; only the places of photos are picked."""
        return {"pixels": stored["pixels"], **{name: stored[name].index_select(0, rows) for name in _PER_PHOTO}}

    def fingerprint(self) -> str:
        return hash_tensors(self._photos)
