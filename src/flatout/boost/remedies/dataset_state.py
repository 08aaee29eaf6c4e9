"""The parts of a dataset that a script may change between two epochs: an epoch number, a transform, labels, data."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

_SIMPLE = (bool, int, float, str, bytes, type(None))
_DEEP = 4
_SMALL_BYTES, _SMALL_ITEMS = 4 << 20, 100_000  # compared by content before each epoch: labels, weights, lists of samples


def dataset_state(dataset: Any, *, whole: bool = False) -> list[Any]:
    """The state of a dataset and of the datasets in it: simple values, the content of arrays and lists, and the identity of
    other objects. Large arrays and lists are compared by identity only, unless `whole` is set."""
    return _of_object(dataset, whole, 0)


def _of_object(holder: Any, whole: bool, depth: int) -> list[Any]:
    return [(name, _of(value, whole, depth)) for name, value in getattr(holder, "__dict__", {}).items()]


def _of(value: Any, whole: bool, depth: int) -> Any:
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, np.ndarray):
        return id(value), _of_array(value, whole)
    if isinstance(value, list | tuple | dict | set):
        return id(value), len(value), _of_items(value, whole, depth)
    if isinstance(value, Dataset) and depth < _DEEP:
        return id(value), _of_object(value, whole, depth + 1)
    return id(value)


def _of_array(array: np.ndarray[Any, Any], whole: bool) -> Any:
    if isinstance(array, np.memmap) or (array.nbytes > _SMALL_BYTES and not whole):
        return array.shape
    if array.dtype.hasobject:
        return _hashed(array.ravel().tolist())
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data) if array.size else array.shape


def _of_items(items: Any, whole: bool, depth: int) -> Any:
    if len(items) > _SMALL_ITEMS and not whole:
        return None
    flat = list(items.items() if isinstance(items, dict) else items)
    if (found := _hashed(flat)) is not None or depth >= _DEEP:
        return found
    return [_of(one, whole, depth + 1) for one in flat]


def _hashed(items: list[Any]) -> int | None:
    """None if an item is mutable."""
    if any(isinstance(one, Tensor | Dataset) for one in items):  # their hash does not depend on their content
        return None
    try:
        return hash(tuple(items))
    except TypeError:
        return None
