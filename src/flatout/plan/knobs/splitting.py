"""Settings and weights that a mesh splits over processes."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_value
from flatout.engine.settings import Settings, value_of

SPLITS = ("tensor", "pipeline", "shard")  # axes of a mesh that split the weights


def split_conflict(settings: Settings, name: str, axes: tuple[str, ...], instead: str) -> Iterator[str]:
    """What to say of a setting that can't go with weights split by one of these axes."""
    if any(axis in settings.mesh for axis in axes):
        split = next(axis for axis in SPLITS if axis in settings.mesh)
        value = show_value(value_of(settings, name))
        yield f"{name}={value} is not for weights split by {split}: --set {name}={instead}"
