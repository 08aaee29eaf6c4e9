"""What a script may set of a dataset between two passes: an epoch, a transform, other data."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

_SIMPLE = (bool, int, float, str, bytes, type(None))
_DEEP = 4


def dataset_state(dataset: Any, depth: int = 0) -> list[Any]:
    """Of it, and of those that it is made of: their numbers and words, and which other things they hold."""
    found: list[Any] = []
    for name, value in getattr(dataset, "__dict__", {}).items():
        inner = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, _SIMPLE):
            found.append((name, value))
        elif isinstance(value, Tensor):
            found.append((name, id(value), value._version))
        elif depth < _DEEP and inner and all(isinstance(one, Dataset) for one in inner):
            found += [(name, id(one), dataset_state(one, depth + 1)) for one in inner]
        else:
            found.append((name, id(value)))
    return found
