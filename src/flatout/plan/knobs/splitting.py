"""Conflicts of settings with weights that a mesh splits over processes."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_value
from flatout.engine.settings import Settings, value_of

SPLITS = ("tensor", "pipeline", "shard")  # mesh axes that split the weights


def split_conflict(settings: Settings, name: str, axes: tuple[str, ...], instead: str) -> Iterator[str]:
    """The message for a setting that does not work with weights split by one of these axes."""
    if any(axis in settings.mesh for axis in axes):
        split = next(axis for axis in SPLITS if axis in settings.mesh)
        value = show_value(value_of(settings, name))
        yield f"{name}={value} does not work with weights split by {split}: --set {name}={instead}"
