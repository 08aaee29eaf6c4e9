"""Which part of an image is cropped, and its place in the square that the model gets."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Flat(NamedTuple):
    """Images of any size, height x width x 3 bytes each, one after the other in `pixels`."""

    pixels: Tensor
    start: Tensor
    width: Tensor


class CropWindow(NamedTuple):
    """int64 [B] each: the box of an image, the size `tall` x `wide` it is scaled to, and where the square begins in it."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    tall: Tensor
    wide: Tensor
    down: Tensor
    across: Tensor
