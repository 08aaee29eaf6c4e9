"""Which part of an image is cut out, and how it lies in the square that the model gets."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Flat(NamedTuple):
    """Images of any size, height x width x 3 bytes each, end to end in `pixels`."""

    pixels: Tensor
    start: Tensor
    width: Tensor


class CropWindow(NamedTuple):
    """int64 [B] each: the box of an image that is scaled to `tall` x `wide`, and where in that the square begins."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    tall: Tensor
    wide: Tensor
    down: Tensor
    across: Tensor
