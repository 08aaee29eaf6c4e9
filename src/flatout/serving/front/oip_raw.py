"""Raw inputs of the Open Inference Protocol: columns of a table, photos, texts, arrays, as the host part takes them."""

from __future__ import annotations

import math
from typing import Any

from flatout.serving.asking import Array
from flatout.serving.front.model_view import ModelView, TensorSpec
from flatout.serving.front.oip_request import GivenTensor, OipRequest
from flatout.serving.front.oip_tensors import array_of, elements_of
from flatout.serving.front.photo_bytes import photo_of_text
from flatout.serving.front.refusals import Refusal


def request_without_json(view: ModelView, body: bytes) -> OipRequest:
    """The whole body is the one input of the model; its outputs are sent as bytes."""
    specs = view.raw_specs
    if len(specs) != 1:
        raise Refusal(400, f"a body without JSON needs a model with one input; {view.name} has {', '.join(specs)}")
    ((name, spec),) = specs.items()
    if spec.dtype is None:
        tensor = GivenTensor(name, "BYTES", (1,), [body])
    else:
        tensor = GivenTensor(name, spec.datatype, _bare_shape(spec, len(body)), None, 0, len(body))
    return OipRequest(None, (tensor,), None, True, 0, 0, len(body))


def _bare_shape(spec: TensorSpec, size: int) -> tuple[int, ...]:
    assert spec.dtype is not None
    row = [1 if inner is None else inner for inner in spec.shape]
    row_bytes = math.prod(row) * spec.dtype.itemsize
    if not size or size % row_bytes:
        raise Refusal(400, f"input {spec.name!r}: a row is {row_bytes:,} bytes, the body has {size:,}")
    count = size // row_bytes
    if None not in spec.shape:
        return (count, *row)
    if spec.shape.count(None) > 1:
        raise Refusal(400, f"input {spec.name!r}: a body without JSON can't say which of the shapes it has")
    return (1, *(count if inner is None else inner for inner in spec.shape))


def raw_column(view: ModelView, tensor: GivenTensor, body: bytes) -> Any:
    """In the form that the host part of the data takes."""
    spec = view.raw_specs[tensor.name]
    if spec.dtype is None or view.kind == "table":
        if tensor.shape[1:] not in ((), (1,)):
            wanted = f"[rows] or [rows, 1], got {list(tensor.shape)}"
            raise Refusal(400, f"input {tensor.name!r}: expected {spec.datatype} of shape {wanted}")
        if tensor.datatype == "BYTES":
            return [_value(view, tensor.name, one) for one in elements_of(tensor, body)]
        if view.kind != "table":
            raise Refusal(400, f"input {tensor.name!r}: expected datatype BYTES, got {tensor.datatype}")
        if not tensor.is_binary:
            return elements_of(tensor, body)  # numbers, text and null as JSON has them
        return array_of(tensor, body).reshape(-1)
    if tensor.datatype == "BYTES":
        raise Refusal(400, f"input {tensor.name!r}: expected datatype {spec.datatype}, got BYTES")
    if view.kind != "sequences" and not (spec.fits(tensor.shape[1:]) or _is_program_shape(view, tensor)):
        wanted = spec.metadata()["shape"]
        if not (view.kind in ("text", "arrays") and len(tensor.shape) == 2 and len(spec.shape) == 1):  # shorter rows of tokens
            raise Refusal(400, f"input {tensor.name!r}: expected shape {wanted}, got {list(tensor.shape)}")
    array: Array = array_of(tensor, body)
    return list(array) if view.kind == "sequences" else array  # rows of any length


def _is_program_shape(view: ModelView, tensor: GivenTensor) -> bool:
    return tensor.name in view.prepared and view.prepared[tensor.name].fits(tensor.shape[1:])


def _value(view: ModelView, name: str, value: Any) -> Any:
    if view.kind == "photos":
        if isinstance(value, str):
            return photo_of_text(value)
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise Refusal(400, f"input {name!r}: expected text in UTF-8: {error}") from None
    return value
