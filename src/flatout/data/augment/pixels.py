"""Augmentation of images [H, W] or [C, H, W], a whole batch at once, keyed for each sample."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Column, Schema


@dataclass(frozen=True)
class Flip:
    """Mirrors an image left to right with a probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise DataError(f"flip: the probability must be between 0 and 1, got {self.probability}")

    def describe(self, schema: Schema) -> dict[str, Column]:
        _height_and_width(schema, "flip")
        return dict(schema)

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        x = batch["x"]
        flipped = keys.uniform("flip").squeeze(1) < self.probability
        if x.device.type == "cpu":
            return {**batch, "x": _flip_one_by_one(x, flipped)}
        return {**batch, "x": torch.where(flipped.view(-1, *[1] * (x.dim() - 1)), x.flip(-1), x)}

    def written(self) -> Any:
        return {"flip": self.probability}


@dataclass(frozen=True)
class Crop:
    """Shifts an image by up to `padding` pixels in each direction and fills the border with its reflection or zeros."""

    padding: int = 4
    mode: str = "reflect"

    def __post_init__(self) -> None:
        if self.mode not in ("reflect", "zero"):
            raise DataError(f"crop: mode must be 'reflect' or 'zero', got {self.mode!r}")
        if self.padding < 1:
            raise DataError(f"crop: padding must be 1 pixel or more, got {self.padding}")

    def describe(self, schema: Schema) -> dict[str, Column]:
        height, width = _height_and_width(schema, "crop")
        if self.padding >= min(height, width):
            raise DataError(f"crop: padding {self.padding} must be smaller than the image, {height} x {width}")
        return dict(schema)

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        x = batch["x"]
        height, width = x.shape[-2:]
        down, down_inside = self._line(keys.integers("crop down", -self.padding, self.padding + 1), height)
        across, across_inside = self._line(keys.integers("crop across", -self.padding, self.padding + 1), width)
        planes = x.reshape(len(x), -1, height * width)
        pixels = (down[:, :, None] * width + across[:, None, :]).view(len(x), 1, -1).expand(planes.shape)
        moved = planes.gather(2, pixels).view(x.shape)
        if self.mode == "zero":
            inside = down_inside[:, :, None] & across_inside[:, None, :]
            moved = moved * (inside if x.dim() == 3 else inside.unsqueeze(1))
        return {**batch, "x": moved}

    def _line(self, shifts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """[B, length]: the source of each pixel of a line, and whether it is inside of the image."""
        wanted = shifts[:, None] + torch.arange(length, device=shifts.device)
        inside = (wanted >= 0) & (wanted < length)
        return (length - 1) - ((length - 1) - wanted.abs()).abs(), inside

    def written(self) -> Any:
        return {"crop": asdict(self)}


@dataclass(frozen=True)
class Cutout:
    """Sets a square of `size` pixels, centred anywhere in the image, to zero."""

    size: int = 8

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"cutout: size must be 1 pixel or more, got {self.size}")

    def describe(self, schema: Schema) -> dict[str, Column]:
        _height_and_width(schema, "cutout")
        return dict(schema)

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        x = batch["x"]
        height, width = x.shape[-2:]
        down = self._covered(keys.integers("cutout down", 0, height), height)
        across = self._covered(keys.integers("cutout across", 0, width), width)
        square = down[:, :, None] & across[:, None, :]
        return {**batch, "x": x.masked_fill(square if x.dim() == 3 else square.unsqueeze(1), 0)}

    def _covered(self, centres: Tensor, length: int) -> Tensor:
        since_start = torch.arange(length, device=centres.device) - (centres[:, None] - self.size // 2)
        return (since_start >= 0) & (since_start < self.size)

    def written(self) -> Any:
        return {"cutout": self.size}


def _flip_one_by_one(x: Tensor, flipped: Tensor) -> Tensor:
    """The same as `where`, which on a CPU mirrors all images and then reads every pixel twice more."""
    made = torch.empty_like(x)
    for image, source, flip in zip(made, x, flipped.tolist(), strict=True):
        image.copy_(source.flip(-1) if flip else source)
    return made


def _height_and_width(schema: Schema, name: str) -> tuple[int, int]:
    if "x" not in schema:
        raise DataError(f"{name} needs images of one size: put a crop before it, such as random_resized_crop")
    shape = schema["x"].shape
    if len(shape) not in (2, 3):
        raise DataError(f"{name} needs images, rows of x of shape [H, W] or [C, H, W]; got {list(shape)}")
    return shape[-2], shape[-1]
