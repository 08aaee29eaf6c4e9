"""Data: sources, their order, the tiers that serve batches, and transforms on the device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flatout.data.data import Data
from flatout.data.source import Source
from flatout.data.sources.arrays import arrays
from flatout.data.sources.digits import digits

if TYPE_CHECKING:
    from flatout.data.sources.datasets.dataset import dataset as dataset
    from flatout.data.sources.photos.images import images as images
    from flatout.data.sources.tables.table import table as table
    from flatout.data.sources.texts.sequences import sequences as sequences
    from flatout.data.sources.texts.text import text as text

__all__ = ["Data", "Source", "arrays", "dataset", "digits", "images", "sequences", "table", "text"]

_HOMES = {  # of the kinds that have much code of their own: it loads when the kind is first used
    "dataset": "flatout.data.sources.datasets.dataset",
    "images": "flatout.data.sources.photos.images",
    "sequences": "flatout.data.sources.texts.sequences",
    "table": "flatout.data.sources.tables.table",
    "text": "flatout.data.sources.texts.text",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flatout.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
