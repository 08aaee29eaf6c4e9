"""Data: sources, the order of their rows, caches, feeds of batches, and transforms on the device."""

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

_HOMES = {  # kinds of data whose modules load when the kind is first used
    "dataset": "flatout.data.sources.datasets.dataset",
    "images": "flatout.data.sources.photos.images",
    "sequences": "flatout.data.sources.texts.sequences",
    "table": "flatout.data.sources.tables.table",
    "text": "flatout.data.sources.texts.text",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flatout.data' has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
