"""Crops photos of any size to squares of one size: a random part for training, or the middle for evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.augment.resample import INTERPOLATIONS, resample
from flatout.data.augment.windows import CropWindow, Flat
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Column, Schema

_TRIES = 10
_RAGGED = ("pixels", "start", "height", "width")


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random box with `scale` of the image's area and `ratio` of width to height, scaled to `size` x `size`.

    Ten boxes are drawn per photo and the first that fits is used. If none fits, the largest box in the middle within `ratio`.
    """

    size: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        _check_size(self.size, "random_resized_crop")
        _check_interpolation(self.interpolation, "random_resized_crop")
        object.__setattr__(self, "scale", _range(self.scale, "scale", 1.0))
        object.__setattr__(self, "ratio", _range(self.ratio, "ratio", math.inf))

    def describe(self, schema: Schema) -> dict[str, Column]:
        return _described(schema, self.size, "random_resized_crop")

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        assert self.size is not None
        window = random_window(batch["height"], batch["width"], keys, self.scale, self.ratio, self.size)
        return _cut(batch, window, self.size, self.interpolation)

    def written(self) -> Any:
        options = {"size": self.size, "scale": list(self.scale), "ratio": list(self.ratio)}
        return {"random_resized_crop": {**options, **_written_interpolation(self.interpolation)}}


@dataclass(frozen=True)
class CenterCrop:
    """Scales an image so that its short side has `resize` pixels (default 29/28 of `size`), and takes the middle."""

    size: int | None = None
    resize: int | None = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        _check_size(self.size, "center_crop")
        _check_interpolation(self.interpolation, "center_crop")
        if self.size is not None and self.resize is None:
            object.__setattr__(self, "resize", resize_for(self.size))
        if self.size is not None and self.resize is not None and self.resize < self.size:
            raise DataError(f"center_crop: resize must be {self.size} (its size) or more, got {self.resize}")

    def describe(self, schema: Schema) -> dict[str, Column]:
        return _described(schema, self.size, "center_crop")

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        assert self.size is not None and self.resize is not None
        window = center_window(batch["height"], batch["width"], self.size, self.resize)
        return _cut(batch, window, self.size, self.interpolation)

    def written(self) -> Any:
        return {"center_crop": {"size": self.size, "resize": self.resize, **_written_interpolation(self.interpolation)}}


def resize_for(size: int) -> int:
    """The length of the short side before the crop: 232 for 224, as in torchvision's newer recipes."""
    return round(size * 29 / 28)


def random_window(
    height: Tensor, width: Tensor, keys: Keys, scale: tuple[float, float], ratio: tuple[float, float], size: int
) -> CropWindow:
    """In float64: devices differ in the last bit of a square root, which then changes no pixel."""
    high, wide = height.double()[:, None], width.double()[:, None]
    drawn = {name: keys.uniform(f"random_resized_crop {name}", _TRIES).double() for name in ("area", "ratio", "down", "across")}
    area = high * wide * (scale[0] + (scale[1] - scale[0]) * drawn["area"])
    low, up = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (up - low) * drawn["ratio"]).exp_()
    box_wide, box_high = (area * aspect).sqrt_().round_(), (area / aspect).sqrt_().round_()
    fits = (box_wide >= 1) & (box_wide <= wide) & (box_high >= 1) & (box_high <= high)
    top, left = (drawn["down"] * (high - box_high + 1)).floor_(), (drawn["across"] * (wide - box_wide + 1)).floor_()

    tries = torch.arange(_TRIES, device=height.device)
    first = torch.where(fits, tries, _TRIES).amin(1, keepdim=True)
    none = first == _TRIES
    first = first.clamp_(max=_TRIES - 1)
    large_wide = torch.minimum(wide, (high * ratio[1]).round_().clamp_(min=1))
    large_high = torch.minimum(high, (wide / ratio[0]).round_().clamp_(min=1))
    box_wide = torch.where(none, large_wide, box_wide.gather(1, first)).squeeze(1).long()
    box_high = torch.where(none, large_high, box_high.gather(1, first)).squeeze(1).long()
    top = torch.where(none.squeeze(1), (height - box_high) // 2, top.gather(1, first).squeeze(1).long())
    left = torch.where(none.squeeze(1), (width - box_wide) // 2, left.gather(1, first).squeeze(1).long())
    whole, zero = torch.full_like(height, size), torch.zeros_like(height)
    return CropWindow(top, left, box_high, box_wide, whole, whole, zero, zero)


def center_window(height: Tensor, width: Tensor, size: int, resize: int) -> CropWindow:
    short = torch.minimum(height, width)
    tall, wide = (height * resize) // short, (width * resize) // short
    zero = torch.zeros_like(height)
    down, across = _middle(tall - size), _middle(wide - size)
    return CropWindow(zero, zero, height, width, tall, wide, down, across)


def _middle(spare: Tensor) -> Tensor:
    """Half, rounded to the nearest even number, as in torchvision's center crop."""
    return (spare.double() / 2).round_().long()


def _cut(batch: Batch, window: CropWindow, size: int, interpolation: str) -> Batch:
    x = resample(Flat(batch["pixels"], batch["start"], batch["width"]), window, size, interpolation)
    return {"x": x, **{name: column for name, column in batch.items() if name not in _RAGGED}}


def _described(schema: Schema, size: int | None, name: str) -> dict[str, Column]:
    if size is None:
        raise DataError(f"{name} needs a size, the side of the square in pixels, such as {name}: 224")
    if any(column not in schema for column in _RAGGED):
        why = "they already have one size" if "x" in schema else f"got {', '.join(schema)}"
        raise DataError(f"{name} turns photos of any size into squares, so it must come first and only once: {why}")
    rest = {column: kind for column, kind in schema.items() if column not in _RAGGED}
    return {"x": Column(torch.uint8, (3, size, size)), **rest}


def _check_size(size: object, name: str) -> None:
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise DataError(f"{name}: size must be a whole number of pixels, 1 or more, got {size!r}")


def _check_interpolation(interpolation: object, name: str) -> None:
    if interpolation not in INTERPOLATIONS:
        raise DataError(f"{name}: interpolation is {' or '.join(INTERPOLATIONS)}, got {interpolation!r}")


def _written_interpolation(interpolation: str) -> dict[str, str]:
    """Only what is not the default: what earlier versions wrote stays the same."""
    return {} if interpolation == "bilinear" else {"interpolation": interpolation}


def _range(given: Sequence[float], name: str, most: float) -> tuple[float, float]:
    values = tuple(float(value) for value in given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(values) != 2 or not 0 < values[0] <= values[1] <= most or math.isinf(values[1]):
        upper = "" if math.isinf(most) else f", {most:g} at most"
        raise DataError(f"random_resized_crop: {name} must be two numbers above 0, the smaller first{upper}; got {given!r}")
    return values[0], values[1]
