"""Data: sources, their order, the tiers that serve batches, and transforms on the device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flatout.data.arrays import arrays
from flatout.data.data import Data
from flatout.data.digits import digits
from flatout.data.source import Source

if TYPE_CHECKING:
    from flatout.data.datasets.dataset import dataset as dataset
    from flatout.data.photos.images import images as images
    from flatout.data.tables.table import table as table
    from flatout.data.texts.sequences import sequences as sequences
    from flatout.data.texts.text import text as text

__all__ = ["Data", "Source", "arrays", "dataset", "digits", "images", "sequences", "table", "text"]

_HOMES = {  # of the kinds that have much code of their own: it loads when the kind is first used
    "dataset": "flatout.data.datasets.dataset",
    "images": "flatout.data.photos.images",
    "sequences": "flatout.data.texts.sequences",
    "table": "flatout.data.tables.table",
    "text": "flatout.data.texts.text",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flatout.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
