"""Normalizes inputs to mean 0 and deviation 1, in float32, by given numbers or by those of the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.files.room import empty
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Column, Schema, Source


@dataclass(frozen=True)
class Normalize:
    """x -> (x * scale - mean) / std in float32; mean and std for each channel or feature, or one for all."""

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _floats(self.mean))
        object.__setattr__(self, "std", _floats(self.std))
        if len(self.mean) != len(self.std):
            raise DataError(f"normalize: mean and std need as many values each, got {len(self.mean)} and {len(self.std)}")
        if not all(value > 0 for value in self.std):
            raise DataError(f"normalize: every std must be above 0, got {list(self.std)}")

    @classmethod
    def fit(cls, source: Source, rows_at_once: int = 4096) -> Normalize:
        """Fits mean and deviation of x over all rows; bytes are first scaled to 0..1."""
        column = source.schema["x"]
        scale = 1 / 255 if column.dtype == torch.uint8 else 1.0
        channels = _channels(column)
        total = torch.zeros(channels, dtype=torch.float64)
        squares = torch.zeros(channels, dtype=torch.float64)
        shift, count = None, 0
        for start in range(0, len(source), rows_at_once):
            x = source.read(torch.arange(start, min(start + rows_at_once, len(source))))["x"].to(torch.float64)
            x = x.mul_(scale).view(len(x), channels, -1)
            if shift is None:
                shift = x.mean((0, 2))  # squares around a nearby mean keep precision when the mean is large
            x -= shift[:, None]
            total += x.sum((0, 2))
            squares += x.square_().sum((0, 2))
            count += x.shape[0] * x.shape[2]
        assert shift is not None
        mean, variance = total / count + shift, squares / count - (total / count) ** 2
        std = variance.clamp_(min=0).sqrt_()
        std[std < 1e-8] = 1.0  # a constant channel stays constant instead of becoming noise
        return cls(scale, tuple(mean.tolist()), tuple(std.tolist()))

    def describe(self, schema: Schema) -> dict[str, Column]:
        column = schema["x"]
        if len(self.mean) not in (1, _channels(column)):
            channels, row = _channels(column), list(column.shape)
            raise DataError(
                f"normalize has {len(self.mean)} means, and x has {channels} channels (a row is {row}): "
                f"give one mean and std, or {channels}"
            )
        return {**schema, "x": Column(torch.float32, column.shape)}

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        x = batch["x"]
        if x.dim() == 4 and x.device.type == "cpu" and x.is_contiguous(memory_format=torch.channels_last):
            return {**batch, "x": self._by_lines(x)}
        made = _constants.__wrapped__ if torch.compiler.is_compiling() else _constants  # tensors of a trace must not be kept
        factor, offset = made(self, x.dim() - 1, x.device)
        return {**batch, "x": torch.addcmul(offset, x.to(torch.float32), factor)}

    def _by_lines(self, x: Tensor) -> Tensor:
        """The same for interleaved channels: a CPU handles several values of a line at once."""
        factor, offset = _line_constants(self, x.shape[1], x.shape[3])
        pixels = x.permute(0, 2, 3, 1)
        made = empty(pixels.shape, torch.float32).copy_(pixels)
        lines = made.view(-1, x.shape[3] * x.shape[1])
        torch.addcmul(offset, lines, factor, out=lines)
        return made.permute(0, 3, 1, 2)

    def written(self) -> Any:
        return {"normalize": {"scale": self.scale, "mean": list(self.mean), "std": list(self.std)}}


@lru_cache(maxsize=64)
def _constants(normalize: Normalize, row_dims: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Made once for a device: an upload during a step would make the host wait."""
    mean, std = torch.tensor(normalize.mean, dtype=torch.float64), torch.tensor(normalize.std, dtype=torch.float64)
    shape = (-1, 1, 1) if row_dims == 3 else (-1,)
    factor, offset = (normalize.scale / std).float().view(shape), (-mean / std).float().view(shape)
    return factor.to(device), offset.to(device)


@lru_cache(maxsize=64)
def _line_constants(normalize: Normalize, channels: int, width: int) -> tuple[Tensor, Tensor]:
    factor, offset = (constant.flatten().expand(channels) for constant in _constants(normalize, 3, torch.device("cpu")))
    return factor.repeat(width), offset.repeat(width)


def _channels(column: Column) -> int:
    """(C, H, W) has C channels and (F,) has F features; an image (H, W) or a number has one."""
    return column.shape[0] if len(column.shape) in (1, 3) else 1


def _floats(values: float | Sequence[float]) -> tuple[float, ...]:
    return (float(values),) if isinstance(values, (int, float)) else tuple(float(value) for value in values)
