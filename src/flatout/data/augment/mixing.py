"""Mixes each image with the next one of the batch: blends them (mixup), or pastes a box of the next one (cutmix).

Adds the columns `y_other`, the target of the next image, and `mix`, the weight of the sample's target (float32, 0 to 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Column, Schema

_TABLE = 4096  # equally likely intervals of the distribution
_GRID = 1 << 16


@dataclass(frozen=True)
class Mixup:
    """x becomes mix * x + (1 - mix) * the next sample's x, with mix drawn from Beta(alpha, alpha) for each sample."""

    alpha: float = 0.2

    def __post_init__(self) -> None:
        _check_alpha(self.alpha, "mixup")

    def describe(self, schema: Schema) -> dict[str, Column]:
        return _described(schema, "mixup")

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        x = batch["x"]
        mix = draw_beta(self.alpha, keys.uniform("mixup").squeeze(1))
        mixed = torch.lerp(x.roll(-1, 0), x, mix.view(-1, 1, 1, 1))
        return {**batch, "x": mixed, "y_other": batch["y"].roll(-1, 0), "mix": mix}

    def written(self) -> Any:
        return {"mixup": self.alpha}


@dataclass(frozen=True)
class Cutmix:
    """Pastes a box of the next sample, 1 - Beta(alpha, alpha) of the area, into x. `mix` is the remaining share."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_alpha(self.alpha, "cutmix")

    def describe(self, schema: Schema) -> dict[str, Column]:
        return _described(schema, "cutmix")

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        x = batch["x"]
        height, width = x.shape[-2:]
        drawn = keys.uniform("cutmix", 3)
        side = (1 - draw_beta(self.alpha, drawn[:, 0])).sqrt()
        down, high = _stretch(side, drawn[:, 1], height)
        across, wide = _stretch(side, drawn[:, 2], width)
        box = (down[:, :, None] & across[:, None, :]).unsqueeze(1)
        mix = 1 - high * wide / (height * width)
        return {**batch, "x": torch.where(box, x.roll(-1, 0), x), "y_other": batch["y"].roll(-1, 0), "mix": mix}

    def written(self) -> Any:
        return {"cutmix": self.alpha}


def _stretch(side: Tensor, centre: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """bool [B, length]: an interval of `side` of the length, centred anywhere, clipped at the ends; and its length."""
    long = (side * length).floor()
    first = (centre * length).floor() - (long / 2).floor()
    places = torch.arange(length, device=side.device)
    inside = (places >= first[:, None]) & (places < (first + long)[:, None])
    return inside, inside.sum(1).float()


def draw_beta(alpha: float, uniform: Tensor) -> Tensor:
    """Beta(alpha, alpha) from numbers in [0, 1), by a table of its quantiles."""
    table = _quantiles_on(alpha, uniform.device)
    place = uniform * _TABLE
    low = place.long()
    return torch.lerp(table[low], table[low + 1], place - low)


@lru_cache(maxsize=32)
def _quantiles_on(alpha: float, device: torch.device) -> Tensor:
    """Made once per device: an upload inside of a step would make the host wait."""
    return torch.from_numpy(beta_quantiles(alpha)).float().to(device)


def beta_quantiles(alpha: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[_TABLE + 1]: where Beta(alpha, alpha) passes 0, 1/4096, ... 1.

    The density may be infinite at 0. As a function of u = x ** alpha it is smooth, so a sum over a grid of u is exact enough.
    The other half is the mirror image.
    """
    u = np.linspace(0, 0.5**alpha, _GRID + 1)
    x = u ** (1 / alpha)
    density = (1 - x) ** (alpha - 1)
    total = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    half = np.interp(np.linspace(0, 1, _TABLE // 2 + 1), total / total[-1], u) ** (1 / alpha)
    half[-1] = 0.5
    return np.concatenate([half, 1 - half[-2::-1]])


def _described(schema: Schema, name: str) -> dict[str, Column]:
    x, y = schema.get("x"), schema.get("y")
    if x is None or len(x.shape) != 3:
        raise DataError(f"{name} needs images, rows of x of shape [C, H, W]; got {x and list(x.shape)}")
    if y is None:
        raise DataError(f"{name} also mixes targets, but there is no column y")
    if "mix" in schema:
        raise DataError(f"{name}: the images are already mixed; use mixup or cutmix, not both")
    if name == "mixup" and not x.dtype.is_floating_point:
        raise DataError("mixup needs floating-point images, but x is bytes: put normalize before it")
    return {**schema, "y_other": y, "mix": Column(torch.float32, ())}


def _check_alpha(alpha: object, name: str) -> None:
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0.01 <= alpha <= 100:
        raise DataError(f"{name}: alpha must be a number between 0.01 and 100, got {alpha!r}")
