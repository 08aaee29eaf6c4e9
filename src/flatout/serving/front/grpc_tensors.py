"""A gRPC inference request as one of the REST protocol with binary tensors, and its answer as a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flatout.serving.front.datatypes import NUMPY_TYPES, bytes_packed
from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.grpc_messages import message_class
from flatout.serving.front.model_view import CLASS, ModelView
from flatout.serving.front.oip_answer import named_output
from flatout.serving.front.oip_request import OipRequest, checked_request
from flatout.serving.front.refusals import Refusal

_Response = message_class("ModelInferResponse")
_TYPED = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""FP16 and BF16 can only be sent as raw contents."""


def request_of_message(message: Any) -> tuple[OipRequest, bytes]:
    """The tensors lie one after the other in the body."""
    inputs, raw = message.inputs, message.raw_input_contents
    is_raw = len(raw) > 0
    if is_raw and len(raw) != len(inputs):
        raise Refusal(400, f"expected as many raw_input_contents as inputs: {len(inputs)}, got {len(raw)}")
    if is_raw:
        pieces = list(raw)
        mixed = [tensor.name for tensor in inputs if tensor.HasField("contents")]
        if mixed:
            raise Refusal(400, f"input {mixed[0]!r}: expected its contents or raw_input_contents, got both")
    else:
        pieces = [_typed_bytes(tensor) for tensor in inputs]
    parameters = _values(message.parameters)
    found: dict[str, Any] = {
        "id": message.id,
        "parameters": {**parameters, "binary_data_output": is_raw},
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": {**_values(tensor.parameters), "binary_data_size": len(piece)},
            }
            for tensor, piece in zip(inputs, pieces, strict=True)
        ],
        "outputs": [{"name": output.name, "parameters": _values(output.parameters)} for output in message.outputs],
    }
    return checked_request(found, 0), pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _values(parameters: Any) -> dict[str, Any]:
    if not parameters:
        return {}
    return {name: getattr(one, one.WhichOneof("parameter_choice") or "", None) for name, one in parameters.items()}


def _typed_bytes(tensor: Any) -> bytes:
    name, datatype, contents = tensor.name, tensor.datatype, tensor.contents
    wanted = _TYPED.get(datatype)
    if wanted is None:
        if datatype in NUMPY_TYPES:
            raise Refusal(400, f"input {name!r}: {datatype} has no typed contents; send it in raw_input_contents")
        return b""  # the datatype is refused next
    others = [field.name for field, _ in contents.ListFields() if field.name != wanted]
    if others:
        raise Refusal(400, f"input {name!r}: {datatype} comes in {wanted}, got {others[0]}")
    values = getattr(contents, wanted)
    if datatype == "BYTES":
        return bytes_packed(values)
    given = np.array(values)
    made = given.astype(NUMPY_TYPES[datatype])
    if made.dtype.kind in "iu" and not np.array_equal(made, given):
        raise Refusal(400, f"input {name!r}: {given[made != given][0]} is no value of the type {datatype}")
    return made.tobytes()


def send_message(
    view: ModelView, request: OipRequest, exchange: RequestExchange, outputs: Mapping[str, Any], named: bool
) -> None:
    """In the form of the request: raw contents, or typed ones."""
    wanted = request.wanted or tuple((name, request.all_binary) for name in (outputs if named else view.outputs))
    found = [(name, *named_output(view, name, outputs, named)) for name, _ in wanted]
    is_raw = request.all_binary or any(datatype not in _TYPED for _, _, datatype in found)
    message = _Response(model_name=view.name, model_version=view.version, id=request.id or "")
    described, raw = message.outputs, message.raw_output_contents
    for name, column, datatype in found:
        is_text = isinstance(column, list)
        output = described.add(name=name, datatype=datatype, shape=(len(column),) if is_text else column.shape)
        if not is_raw:
            values = [text.encode() for text in column] if is_text else column.reshape(-1).tolist()
            getattr(output.contents, _TYPED[datatype]).extend(values)
        elif is_text and name == CLASS and view.packed_classes and not named:
            last = len(view.packed_classes) - 1
            raw.append(b"".join([view.packed_classes[min(one, last)] for one in outputs["prediction"].tolist()]))
        else:
            raw.append(bytes_packed(text.encode() for text in column) if is_text else column.tobytes())
    exchange.send(b"", message.SerializeToString())
