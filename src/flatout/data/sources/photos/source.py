"""Photos as rows: decoded when they are read, concatenated in one flat tensor of bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.decoding.decode import Decoder, plan
from flatout.data.files.bad import Bad
from flatout.data.files.room import empty
from flatout.data.offers import PlacedRows, Take, fill_buffers
from flatout.data.source import Batch, Column, Source
from flatout.data.sources.photos.listing import Photos
from flatout.data.sources.photos.opening import read_photo
from flatout.machine.host import affinity_cores

CHANNELS = 3
_PER_PHOTO = ("start", "height", "width", "y")


def _new_pixels(name: str, length: int) -> Tensor:
    return empty((length,), torch.uint8)


class PhotoSource(Source):
    """`pixels` uint8, ragged, height x width x RGB; `start`, `height` and `width` of each photo; its target `y`.

    If a photo turns out to be bad during training and `bad` allows it, the next good one in storage order replaces it: the same
    one in every run and tier.
    """

    piece_rows = 16  # for one thread at a time

    def __init__(self, photos: Photos, y: Tensor, cover: int, decoder: Decoder, bad: Bad) -> None:
        self._bad = bad
        self._photos = photos
        self._y = y
        self._cover = cover
        self._decoder = decoder
        self._plans = plan(photos.height, photos.width, photos.orientation, photos.turbo, cover)
        self._height, self._width = torch.from_numpy(self._plans.height), torch.from_numpy(self._plans.width)
        self._sizes = self._height * self._width * CHANNELS  # bytes of each photo, known before decoding
        self._pixels = Column(torch.uint8, (), ragged=float(self._sizes.double().mean()))
        self._shown = torch.arange(len(photos))  # the photo shown for each row: its own, or a replacement
        self._broken: set[int] = set()
        self._one_at_a_time = Lock()

    @property
    def schema(self) -> dict[str, Column]:
        whole = Column(torch.int64, ())
        return {"pixels": self._pixels, "start": whole, "height": whole, "width": whole, "y": Column(self._y.dtype, ())}

    def __len__(self) -> int:
        return len(self._photos)

    @property
    def made_by(self) -> str:
        return self._decoder.id

    @property
    def bad(self) -> Bad:
        return self._bad

    @property
    def sizes(self) -> Tensor:
        return self._sizes

    @property
    def placed(self) -> PlacedRows:
        return self

    def column(self, name: str) -> Tensor:
        """A column of all rows that needs no decoding."""
        known = {"y": self._y, "height": self._height, "width": self._width}
        if name not in known:
            raise UsageError(f"photos have no column {name!r} that is known without decoding, only {', '.join(known)}")
        return known[name].index_select(0, self._shown)

    def stand_ins(self, rows: Tensor) -> Tensor:
        """A mask of rows that show another photo because their own is bad: a cache on disk does not keep those."""
        return self.shown(rows) != rows

    def shown(self, rows: Tensor) -> Tensor:
        """The photo shown for each row: its own, or a replacement."""
        return self._shown.index_select(0, rows)

    def row_sizes(self, rows: Tensor) -> Tensor:
        """Bytes of each photo, known before decoding; a bad photo is replaced by one of another size."""
        return self._sizes.index_select(0, self.shown(rows))

    def read(self, rows: Tensor) -> Batch:
        return self._read(rows, _new_pixels, threads=1)

    def read_into(self, rows: Tensor, batch: Batch) -> None:
        """`pixels` may be longer than needed: only its start is filled."""
        self.read_with(rows, fill_buffers(batch))

    def read_with(self, rows: Tensor, take: Take) -> Batch:
        """Like `read`, decoded into tensors from `take(column, length)`."""
        batch = self._read(rows, take, threads=1)
        return {**batch, **{name: take(name, len(rows)).copy_(batch[name]) for name in _PER_PHOTO}}

    @property
    def names(self) -> list[str]:
        """Of the files, relative to their folder."""
        return self._photos.names

    def fingerprint(self) -> str:
        """A hash of names, sizes, times and targets of the files, and of the decoded size."""
        digest = hashlib.blake2b(repr((self._cover, len(self))).encode(), digest_size=16)
        digest.update("\0".join(self._photos.names).encode("utf-8", "surrogatepass"))
        digest.update(self._photos.marks.tobytes())
        digest.update(self._y.numpy().tobytes())
        return digest.hexdigest()

    @property
    def stored_bytes(self) -> int:
        return int(self._sizes.sum()) + len(self) * sum(self.schema[name].row_bytes for name in _PER_PHOTO)

    def stored(self) -> dict[str, Tensor]:
        return self._read(torch.arange(len(self)), _new_pixels, threads=affinity_cores())

    def laid_out(self, pixels: Tensor, start: Tensor) -> dict[str, Tensor]:
        """The input of `gather` by photo number, for photos that start at these places in `pixels`."""
        return {"pixels": pixels, "start": start, "height": self._height, "width": self._width, "y": self._y}

    def gather(self, stored: Mapping[str, Tensor], rows: Tensor) -> Batch:
        """The pixels stay as they are; only the places of photos are picked."""
        picked = {name: stored[name].index_select(0, rows) for name in _PER_PHOTO}
        return {"pixels": stored["pixels"], **picked}

    def _read(self, rows: Tensor, take: Take, threads: int) -> Batch:
        while True:
            shown = self.shown(rows)
            sizes = self._sizes.index_select(0, shown)
            ends = sizes.cumsum(0)
            start, pixels = ends - sizes, take("pixels", int(sizes.sum()))
            failed = self._decode_all(shown.tolist(), start.tolist(), pixels, threads)
            if not failed:
                break
            for photo, why in failed.items():
                self._replace(photo, why)
        columns = {"height": self._height, "width": self._width, "y": self._y}
        return {"pixels": pixels, "start": start, **{name: col.index_select(0, shown) for name, col in columns.items()}}

    def _decode_all(self, photos: list[int], start: list[int], pixels: Tensor, threads: int) -> dict[int, str]:
        """The photos that could not be decoded, with reasons."""
        flat = pixels.numpy()
        at_once = self._decoder.at_once
        outs = [flat[first : first + size] for first, size in zip(start, self._sizes[photos].tolist(), strict=True)]
        pieces = [slice(first, first + at_once) for first in range(0, len(photos), at_once)]

        def decode(piece: slice) -> dict[int, str]:
            return self._decode(photos[piece], outs[piece])

        failed: dict[int, str] = {}
        if threads == 1 or len(pieces) == 1:
            for piece in pieces:
                failed.update(decode(piece))
            return failed
        with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
            for some in pool.map(decode, pieces):
                failed.update(some)
        return failed

    def _decode(self, photos: list[int], outs: list[np.ndarray[tuple[int], np.dtype[np.uint8]]]) -> dict[int, str]:
        contents, failed, readable = [], {}, []
        for place, (photo, path) in enumerate(zip(photos, self._photos.paths(photos), strict=True)):
            try:
                contents.append(read_photo(path))
                readable.append(place)
            except OSError as error:
                failed[photo] = f"can't be read: {error.strerror or error}"
        plans = self._plans.of([photos[place] for place in readable])
        problems = self._decoder.decode(contents, plans, [outs[place] for place in readable])
        failed.update({photos[place]: why for place, why in zip(readable, problems, strict=True) if why is not None})
        return failed

    def _replace(self, photo: int, why: str) -> None:
        """Raises if bad photos are errors; else rows with this photo show the next good one from now on."""
        with self._one_at_a_time:
            if photo in self._broken:  # another thread was faster
                return
            found = [photo]
            self._bad.found(self._photos.path(photo), why)
            for step in range(1, len(self)):
                other = (photo + step) % len(self)
                if other in self._broken:
                    continue
                problem = self._decode([other], [np.empty(int(self._sizes[other]), np.uint8)]).get(other)
                if problem is None:
                    self._broken.update(found)
                    self._shown = torch.where(torch.isin(self._shown, torch.tensor(found)), other, self._shown)
                    return
                found.append(other)
                self._bad.found(self._photos.path(other), problem)
            raise DataError(f"none of the {len(self)} photos in {self._photos.folder} can be decoded; {self._bad.summary()}")
