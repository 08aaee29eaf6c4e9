"""The built-in transforms by name, as a recipe writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.specs import Spec, pick
from flatout.data.attention_mask import AttentionMask
from flatout.data.augment.colour import ColourJitter
from flatout.data.augment.crops import CenterCrop, RandomResizedCrop
from flatout.data.augment.mixing import Cutmix, Mixup
from flatout.data.augment.pixels import Crop, Cutout, Flip
from flatout.data.normalize import Normalize
from flatout.data.source import Transform

__all__ = ["TRANSFORMS", "Crop", "Cutout", "Flip", "Normalize", "parse_transforms"]


TRANSFORMS = {
    "random_resized_crop": RandomResizedCrop, "center_crop": CenterCrop, "crop": Crop, "flip": Flip, "cutout": Cutout,
    "colour_jitter": ColourJitter, "normalize": Normalize, "mixup": Mixup, "cutmix": Cutmix,
    "attention_mask": AttentionMask,
}  # fmt: skip


def parse_transforms(written: Sequence[Any] | Any) -> tuple[Transform, ...]:
    """`[flip, {crop: 4}, {cutout: {size: 8}}]`, or transforms, or a mix."""
    items = written if isinstance(written, Sequence) and not isinstance(written, str) else [written]
    return tuple(_parse(item) for item in items)


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
