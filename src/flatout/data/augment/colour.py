"""Random brightness, contrast, saturation and hue, as one matrix per sample, a whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Column, Schema

_GREY = (0.299, 0.587, 0.114)  # perceived brightness of red, green and blue
_YIQ = (_GREY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))  # grey and two colour differences


@dataclass(frozen=True)
class ColourJitter:
    """Factors drawn from [1 - v, 1 + v], or from a given pair; hue is rotated by up to `hue` of the colour circle.

    All four are linear, so they are multiplied into one matrix per sample (brightness, contrast, saturation, hue), and only the
    result is clipped to 0..255. Hue rotates around the grey axis, which keeps the brightness of a colour.
    """

    brightness: float | tuple[float, float] = 0.4
    contrast: float | tuple[float, float] = 0.4
    saturation: float | tuple[float, float] = 0.4
    hue: float | tuple[float, float] = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            _range(getattr(self, name), name, 1.0, math.inf)
        _range(self.hue, "hue", 0.0, 0.5)

    def describe(self, schema: Schema) -> dict[str, Column]:
        x = schema.get("x")
        if x is None or len(x.shape) != 3 or x.shape[0] != 3:
            raise DataError(f"colour_jitter needs images with three colours, x of shape [3, H, W]; got {x and list(x.shape)}")
        if x.dtype != torch.uint8:
            raise DataError("colour_jitter works on bytes: put it before normalize, mixup, cutmix and cutout")
        return dict(schema)

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        x = batch["x"]
        drawn = keys.uniform("colour_jitter", 4)
        brightness, contrast, saturation = (
            _between(drawn[:, place], _range(given, "", 1.0, math.inf))
            for place, given in enumerate((self.brightness, self.contrast, self.saturation))
        )
        turn = _between(drawn[:, 3], _range(self.hue, "", 0.0, 0.5)) * (2 * math.pi)
        red, green, blue = x.float().unbind(1)
        mean = (red * _GREY[0] + green * _GREY[1] + blue * _GREY[2]).mean((1, 2))
        matrix = _matrix(saturation, turn) * (contrast * brightness)[:, None, None]
        offset = (1 - contrast) * brightness * mean  # grey stays grey under saturation and hue
        changed = torch.empty_like(x)
        for channel in range(3):
            weights = matrix[:, channel, :, None, None].unbind(1)
            value = torch.addcmul(offset[:, None, None], red, weights[0])
            value = value.addcmul_(green, weights[1]).addcmul_(blue, weights[2])
            changed[:, channel] = value.round_().clamp_(0, 255)
        return {**batch, "x": changed}

    def written(self) -> Any:
        names = ("brightness", "contrast", "saturation", "hue")
        values = {name: getattr(self, name) for name in names}
        return {"colour_jitter": {name: list(v) if isinstance(v, Sequence) else v for name, v in values.items()}}


def _matrix(saturation: Tensor, turn: Tensor) -> Tensor:
    """[B, 3, 3]: saturation moves towards grey, then hue rotates around the grey axis."""
    grey, colour, turned = _parts(saturation.device)
    return grey + (saturation * turn.cos())[:, None, None] * colour + (saturation * turn.sin())[:, None, None] * turned


@lru_cache(maxsize=16)
def _parts(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices for the grey part of a colour, the rest of it, and the rest after a quarter rotation.

    Made once per device, because an upload inside of a step would make the host wait.
    """
    yiq = torch.tensor(_YIQ, dtype=torch.float64)
    back = yiq.inverse()
    grey = back @ torch.diag(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)) @ yiq
    quarter = torch.tensor([[0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64)
    parts = (grey, torch.eye(3, dtype=torch.float64) - grey, back @ quarter @ yiq)
    first, second, third = (part.float().to(device) for part in parts)
    return first, second, third


def _between(drawn: Tensor, limits: tuple[float, float]) -> Tensor:
    return limits[0] + (limits[1] - limits[0]) * drawn


def _range(given: float | tuple[float, float], name: str, centre: float, most: float) -> tuple[float, float]:
    if isinstance(given, int | float) and not isinstance(given, bool) and given >= 0:
        values = (max(centre - given, 0.0) if centre else -float(given), centre + given)
    elif isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
        values = (float(given[0]), float(given[1]))
    else:
        raise DataError(f"colour_jitter: {name} must be a number, 0 or more, or a pair (from, to); got {given!r}")
    lowest = 0.0 if centre else -most
    if not lowest <= values[0] <= values[1] <= most or math.isinf(values[1]):
        raise DataError(f"colour_jitter: {name} must be between {lowest:g} and {most:g}, got {given!r}")
    return values
