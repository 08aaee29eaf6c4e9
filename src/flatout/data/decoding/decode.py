"""Decodes the bytes of an image file to pixels: uint8, height x width x RGB, upright, no larger than needed.

The size depends only on the file, so decoded images can be kept and every tier has the same bits:

- A JPEG is decoded at the smallest n/8 of its size whose short side has at least `cover` pixels. 7/8 is not used: its
  transform has no fast form, so it takes longer than full size.
- If the short side is then still twice `cover` or more, the image is reduced by a whole number: each pixel is the mean of a
  square.
- Grey and CMYK become RGB, 16 bits become 8 (the upper half), transparent parts become white, the first frame of an animation
  is used, and the EXIF rotation is applied.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from flatout.data.decoding.headers import KINDS

Array = np.ndarray[Any, Any]
RULE = 1  # increased whenever the same file would give other pixels
_EIGHTHS = (1, 2, 3, 4, 5, 6)
_USUAL_SCANS = 64  # of a progressive JPEG; most have ten
_MOST_SCANNED_PIXELS = 1 << 31


class DecodePlan(NamedTuple):
    """How one file is decoded: to the stage size, then reduced by `factor`, then rotated."""

    turbo: bool
    stage_height: int
    stage_width: int
    factor: int
    orientation: int


class Plans(NamedTuple):
    """Columns of decode plans, one entry per file. `height` and `width` are those of the result."""

    turbo: Array
    stage_height: Array
    stage_width: Array
    factor: Array
    orientation: Array
    height: Array
    width: Array

    def of(self, files: Sequence[int]) -> list[DecodePlan]:
        columns = (self.turbo, self.stage_height, self.stage_width, self.factor, self.orientation)
        return [DecodePlan(*row) for row in zip(*(column[files].tolist() for column in columns), strict=True)]


def plan(height: Array, width: Array, orientation: Array, turbo: Array, cover: int) -> Plans:
    """Decode plans for files with these headers."""
    short = np.minimum(height, width)
    eighths = np.full(len(short), 8)
    for n in reversed(_EIGHTHS):
        eighths[turbo & (-(-short * n // 8) >= cover)] = n
    stage_height, stage_width = -(-height * eighths // 8), -(-width * eighths // 8)
    factor = np.maximum(np.minimum(stage_height, stage_width) // cover, 1)
    high, wide = -(-stage_height // factor), -(-stage_width // factor)
    lying = orientation >= 5
    turned = np.where(lying, wide, high), np.where(lying, high, wide)
    return Plans(turbo, stage_height, stage_width, factor, orientation, *turned)


class Decoder(Protocol):
    """`at_once` is the best number of files per call."""

    at_once: int

    @property
    def id(self) -> str:
        """Libraries and their versions, and the version of the rule: another id, other pixels."""
        ...

    def decode(self, contents: Sequence[bytes], plans: Sequence[DecodePlan], outs: Sequence[Array]) -> list[str | None]:
        """Fills each flat array with an image. Why it could not, in words, or None: for each."""
        ...


class Turbo:
    """simplejpeg for JPEGs, Pillow for everything else. Both release the GIL while they decode."""

    at_once = 8

    @property
    def id(self) -> str:
        import PIL
        import simplejpeg

        return f"turbo rule {RULE}, simplejpeg {simplejpeg.__version__}, pillow {PIL.__version__}"

    def decode(self, contents: Sequence[bytes], plans: Sequence[DecodePlan], outs: Sequence[Array]) -> list[str | None]:
        return [decode_one(content, plan, out) for content, plan, out in zip(contents, plans, outs, strict=True)]


def decode_one(content: bytes, plan: DecodePlan, out: Array) -> str | None:
    import simplejpeg

    try:
        _check_scans(content)
        if not plan.turbo:
            _finish(_decode_by_pil(content), plan, out)
            return None
        direct = plan.factor == 1 and plan.orientation == 1
        size = {"min_height": plan.stage_height, "min_width": plan.stage_width}
        pixels = simplejpeg.decode_jpeg(content, "RGB", buffer=out if direct else None, **size)
        if direct:
            _check_size(pixels, plan)
        else:
            _finish(pixels, plan, out)
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise many kinds of errors for damaged files
        return f"can't be decoded: {error}"
    return None


def _check_scans(content: bytes) -> None:
    """Every scan of a progressive JPEG processes all its pixels, so a small file could take hours."""
    if not content.startswith(b"\xff\xd8") or has_one_scan(content):
        return
    scans = content.count(b"\xff\xda")
    if scans > _USUAL_SCANS:
        import simplejpeg

        height, width, _, _ = simplejpeg.decode_jpeg_header(content, strict=False)
        if scans * height * width > _MOST_SCANNED_PIXELS:
            raise ValueError(f"it has {scans} scans of {height} x {width} pixels, too many for a real photo")


def has_one_scan(content: bytes) -> bool:
    """Whether the first scan has all components of a sequential JPEG: decoders then read no other. Most photos are like this,
    and to look through all of their bytes would take a fifteenth of the time to decode them."""
    place, components = 2, 0
    while content[place : place + 1] == b"\xff" and place + 10 <= len(content):
        marker = content[place + 1]
        if marker in (0xC0, 0xC1):
            components = content[place + 9]
        elif marker == 0xDA:
            return components > 0 and content[place + 4] == components
        elif marker == 0xC2 or marker < 0xC0 or 0xD0 <= marker <= 0xD9:
            return False
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    return False


def _decode_by_pil(content: bytes) -> Array:
    from PIL import Image

    image: Any = Image.open(io.BytesIO(content), formats=KINDS)
    if image.mode.startswith("I"):  # 16-bit grey
        grey = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    return np.asarray(image.convert("RGB"))


def _finish(pixels: Array, plan: DecodePlan, out: Array) -> None:
    _check_size(pixels, plan)
    if plan.factor > 1:
        from PIL import Image

        pixels = np.asarray(Image.fromarray(pixels).reduce(plan.factor))
    pixels = upright(pixels, plan.orientation)
    np.copyto(out.reshape(pixels.shape), pixels)


def upright(pixels: Array, orientation: int) -> Array:
    """A view, rotated by the EXIF orientation: 2 to 4 mirror or rotate by 180 degrees, 5 to 8 also swap the axes."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def _check_size(pixels: Array, plan: DecodePlan) -> None:
    if pixels.shape != (plan.stage_height, plan.stage_width, 3):
        came, wanted = pixels.shape[:2], (plan.stage_height, plan.stage_width)
        raise ValueError(f"decoded to {came[0]} x {came[1]} pixels, but its header says {wanted[0]} x {wanted[1]}")
