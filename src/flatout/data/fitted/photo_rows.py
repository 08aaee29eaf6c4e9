"""The host part of photos: image files as bytes, or pixels, to one flat tensor of pixels, decoded as in training."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.decoding.decode import plan
from flatout.data.decoding.decoders import make_decoder
from flatout.data.decoding.headers import PhotoHeader, read_header
from flatout.data.fitted.host import RawInput
from flatout.data.source import Batch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PhotoHost:
    """Files are decoded to at least `cover` pixels on the short side; pixels are used as they are."""

    cover: int
    decoder: str
    class_names: tuple[str, ...] | None = None
    classes: int | None = None

    kind: ClassVar[str] = "photos"

    @property
    def inputs(self) -> tuple[RawInput, ...]:
        return (RawInput("photo", "photo", "uint8", (None, None, 3)),)

    def rows(self, raw: Any) -> Batch:
        """A list of photos, each the bytes of an image file or a uint8 array [height, width, 3]; or {"photo": list}."""
        given = raw.get("photo") if isinstance(raw, Mapping) else raw
        if isinstance(given, bytes | str) or not isinstance(given, Sequence | np.ndarray | Tensor):
            raise DataError(f"expected a list of photos, each bytes or pixels; got {type(given).__name__}")
        if not len(given):
            raise DataError("the data has no rows")
        files = {row: bytes(one) for row, one in enumerate(given) if isinstance(one, bytes | bytearray | memoryview)}
        found: dict[int, Array] = self._decoded(files)
        found.update({row: _pixels(one, row) for row, one in enumerate(given) if row not in files})
        flat = [found[row].reshape(-1) for row in range(len(given))]
        shapes = torch.tensor([found[row].shape[:2] for row in range(len(given))])
        sizes = shapes.prod(1) * 3
        return {
            "pixels": torch.from_numpy(flat[0] if len(flat) == 1 else np.concatenate(flat)),
            "start": sizes.cumsum(0) - sizes,
            "height": shapes[:, 0].clone(),
            "width": shapes[:, 1].clone(),
        }

    def _decoded(self, files: Mapping[int, bytes]) -> dict[int, Array]:
        if not files:
            return {}
        headers = [_header(content, row) for row, content in files.items()]
        height, width, orientation = (np.array(column, np.int64) for column in list(zip(*headers, strict=True))[:3])
        plans = plan(height, width, orientation, np.array([header.turbo for header in headers], bool), self.cover)
        made = [np.empty((high, wide, 3), np.uint8) for high, wide in zip(plans.height, plans.width, strict=True)]
        decoder = make_decoder(self.decoder)
        contents, each = list(files.values()), plans.of(list(range(len(made))))
        for start in range(0, len(made), decoder.at_once):
            some = slice(start, start + decoder.at_once)
            problems = decoder.decode(contents[some], each[some], [one.reshape(-1) for one in made[some]])
            for row, why in zip(list(files)[some], problems, strict=True):
                if why is not None:
                    raise DataError(f"row {row}: the photo {why}")
        return dict(zip(files, made, strict=True))

    def to_json(self) -> dict[str, Any]:
        names = None if self.class_names is None else list(self.class_names)
        return {"cover": self.cover, "decoder": self.decoder, "class_names": names, "classes": self.classes}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> PhotoHost:
        names = written["class_names"]
        return cls(written["cover"], written["decoder"], None if names is None else tuple(names), written["classes"])


def _header(content: bytes, row: int) -> PhotoHeader:
    try:
        return read_header(io.BytesIO(content))
    except ValueError as error:
        raise DataError(f"row {row}: the photo {error}") from error


def _pixels(given: Any, row: int) -> Array:
    if isinstance(given, str):
        raise DataError(f"row {row}: a photo is the bytes of its file, or its pixels; got text: {given[:60]!r}")
    photo = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if photo.ndim != 3 or photo.shape[-1] != 3 or photo.dtype != np.uint8:
        came = f"{photo.dtype} {list(photo.shape)}"
        raise DataError(f"row {row}: a photo is uint8 [height, width, 3], red, green and blue, got {came}")
    return np.ascontiguousarray(photo)
