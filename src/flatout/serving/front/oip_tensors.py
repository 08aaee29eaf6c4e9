"""The values of tensors in a request of the Open Inference Protocol, from its bytes or its JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flatout.serving.asking import Array
from flatout.serving.front.datatypes import NUMPY_TYPES, bytes_elements
from flatout.serving.front.oip_request import GivenTensor, check_size, json_kind
from flatout.serving.front.refusals import Refusal, first_line


def array_of(tensor: GivenTensor, body: bytes) -> Array:
    """Of a type of numbers."""
    dtype = NUMPY_TYPES[tensor.datatype]
    if tensor.is_binary:
        check_size(tensor)
        seen = np.dtype(np.uint8) if dtype == np.bool_ else dtype  # any other byte than 0 is true
        found = np.frombuffer(body, seen, math.prod(tensor.shape), tensor.start).reshape(tensor.shape)
        return found != 0 if dtype == np.bool_ else found
    if tensor.datatype == "BF16":
        raise Refusal(400, f"input {tensor.name!r}: JSON has no BF16; send it as binary data, or as FP32")
    try:
        given = np.array(tensor.data)
        if given.dtype.kind == "O" or given.shape != tensor.shape:
            given = np.array(_flat(tensor))  # in one list, or with null
        return _as_type(given, dtype).reshape(tensor.shape)
    except (ValueError, TypeError, OverflowError) as error:
        _flat(tensor)  # a wrong number of values is said first
        why = f"can't be read as {tensor.datatype}: {first_line(str(error))}"
        raise Refusal(400, f"input {tensor.name!r}: the data {why}") from None


def _as_type(given: Array, dtype: np.dtype[Any]) -> Array:
    """ValueError for values that the type does not have."""
    if given.dtype.kind in "US":
        raise ValueError("text where numbers are expected")
    if (given.dtype.kind == "b") != (dtype.kind == "b"):
        raise ValueError("true or false where numbers are expected, or the other way round")
    if dtype.kind in "iu" and given.dtype != dtype:
        made = given.astype(dtype) if given.dtype.kind in "iu" else np.array(given.tolist(), dtype)
        if b"\1" in np.not_equal(made, given).tobytes():
            raise ValueError(f"{given[made != given][0]} is no value of this type")
        return made
    return given.astype(dtype)  # null becomes NaN


def elements_of(tensor: GivenTensor, body: bytes) -> list[Any]:
    """Of BYTES: bytes, or what the JSON holds."""
    if not tensor.is_binary:
        return _flat(tensor)
    found = bytes_elements(memoryview(body)[tensor.start : tensor.end], tensor.name)
    if len(found) != math.prod(tensor.shape):
        raise Refusal(400, f"input {tensor.name!r}: shape {list(tensor.shape)} does not hold {len(found)} elements")
    return found


def _flat(tensor: GivenTensor) -> list[Any]:
    """The values of the JSON in one list. They may come nested as the shape says."""
    if not isinstance(tensor.data, list):
        raise Refusal(400, f"input {tensor.name!r}: expected 'data' as a list, got {json_kind(tensor.data)}")
    values: list[Any] = tensor.data
    for _ in range(len(tensor.shape) - 1):
        if values and all(isinstance(value, list) for value in values):
            if len({len(value) for value in values}) > 1:
                raise Refusal(400, f"input {tensor.name!r}: the lists of the data differ in length")
            values = [inner for value in values for inner in value]
    wanted = math.prod(tensor.shape)
    if len(values) != wanted:
        came = f"shape {list(tensor.shape)} is {wanted:,} values, the data has {len(values):,}"
        raise Refusal(400, f"input {tensor.name!r}: {came}")
    if any(isinstance(value, list | dict) for value in values):
        raise Refusal(400, f"input {tensor.name!r}: the data is nested deeper than its shape {list(tensor.shape)}")
    return values
