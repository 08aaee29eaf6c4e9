"""A small data set inside the package: 1,797 handwritten digits of 8 x 8 pixels, from DIGITS.md's source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.data.data import Data
from flatout.data.source import Transform
from flatout.data.sources.arrays import arrays


def digits(
    holdout: float = 0.2,
    *,
    normalize: str | Mapping[str, Any] | Transform | None = "auto",
    augment: Sequence[Any] = (),
    draw: str | Any = "shuffle",
    seed: int = 0,
) -> Data:
    """Images as 8 x 8 bytes (0 to 16), labels 0 to 9."""
    path = Path(__file__).with_name("digits.npz")
    return arrays(path, holdout=holdout, classes=10, layout="hw", normalize=normalize, augment=augment, draw=draw, seed=seed)
