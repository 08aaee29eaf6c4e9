"""Types of tensors by their names in the Open Inference Protocol, and BYTES tensors: a length and the bytes of each element."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from flatout.serving.front.refusals import Refusal

Array = np.ndarray[Any, Any]

# bfloat16 has no NumPy type: its bits are uint16
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
_OF_NUMPY = {dtype: name for name, dtype in NUMPY_TYPES.items() if name != "BF16"}


def datatype_of(torch_type: str) -> str:
    """float32 -> FP32."""
    return "BF16" if torch_type == "bfloat16" else _OF_NUMPY[np.dtype({"bool": "bool_"}.get(torch_type, torch_type))]


def datatype_of_array(array: Array) -> str:
    return _OF_NUMPY.get(array.dtype, "BYTES")


def bytes_elements(content: memoryview | bytes, name: str) -> list[bytes]:
    found: list[bytes] = []
    start, end = 0, len(content)
    while start < end:
        if start + 4 > end:
            raise Refusal(400, f"input {name!r}: the BYTES data ends within a length, after {len(found)} elements")
        (size,) = struct.unpack_from("<I", content, start)
        start += 4
        if start + size > end:
            came = f"{end - start} bytes are left of element {len(found)}, whose length is {size}"
            raise Refusal(400, f"input {name!r}: the BYTES data is truncated: {came}")
        found.append(bytes(content[start : start + size]))
        start += size
    return found


def bytes_packed(elements: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def bfloat16_numbers(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)
