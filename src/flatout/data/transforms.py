"""Transforms of a batch on the device: batched, with shapes known in advance, random only through keys.

After a first run on a device, each can be captured in a CUDA graph: it makes no values on the host and never waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from flatout.base.errors import UsageError
from flatout.base.specs import Spec, pick
from flatout.data.augment.colour import ColourJitter
from flatout.data.augment.crops import CenterCrop, RandomResizedCrop
from flatout.data.augment.mixing import Cutmix, Mixup
from flatout.data.augment.pixels import Crop, Cutout, Flip
from flatout.data.normalize import Normalize
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, Column, Schema

__all__ = [
    "TRANSFORMS", "Crop", "Cutout", "Flip", "Normalize", "Transform", "apply", "describe_all", "parse_transforms", "rehearse",
]  # fmt: skip


class Transform(Protocol):
    def describe(self, schema: Schema) -> dict[str, Column]:
        """The schema after the transform; DataError if it does not fit."""
        ...

    def __call__(self, batch: Batch, keys: Keys) -> Batch: ...

    def written(self) -> Any:
        """As a recipe writes it; `parse_transforms` gives an equal transform back."""
        ...


TRANSFORMS = {
    "random_resized_crop": RandomResizedCrop, "center_crop": CenterCrop, "crop": Crop, "flip": Flip, "cutout": Cutout,
    "colour_jitter": ColourJitter, "normalize": Normalize, "mixup": Mixup, "cutmix": Cutmix,
}  # fmt: skip


def parse_transforms(written: Sequence[Any] | Any) -> tuple[Transform, ...]:
    """`[flip, {crop: 4}, {cutout: {size: 8}}]`, or transforms, or a mix."""
    items = written if isinstance(written, Sequence) and not isinstance(written, str) else [written]
    return tuple(_parse(item) for item in items)


def describe_all(transforms: Sequence[Transform], schema: Schema) -> dict[str, Column]:
    """The schema after all transforms."""
    for transform in transforms:
        schema = transform.describe(schema)
    return dict(schema)


def apply(transforms: Sequence[Transform], batch: Batch, keys: Keys) -> Batch:
    for transform in transforms:
        batch = transform(batch, keys)
    return batch


def rehearse(transforms: Sequence[Transform], batch: Batch) -> None:
    """Runs the transforms on one row before training, so that constants are on the device before a graph is captured."""
    if transforms:
        none = torch.zeros(1, dtype=torch.int64, device=next(iter(batch.values())).device)
        apply(transforms, batch, Keys(0, none, none))


def _parse(item: Any) -> Transform:
    if callable(item):
        transform: Transform = item
        return transform
    spec = Spec.parse(item)
    maker = pick(TRANSFORMS, spec.name, "transform")
    try:
        made: Transform = spec.fitted_to(maker).call(maker)
    except TypeError as error:
        raise UsageError(f"{spec.name}: {error}") from error
    return made
