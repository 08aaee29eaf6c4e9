"""POST .../infer of the Open Inference Protocol v2, with its binary extension."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import orjson

from flatout.serving.asking import Array
from flatout.serving.front.compressing import packed, unpacked
from flatout.serving.front.datatypes import NUMPY_TYPES, bytes_packed, datatype_of_array
from flatout.serving.front.desk import Desk
from flatout.serving.front.exchange import Exchange
from flatout.serving.front.inferring import deadline_after, timing_headers
from flatout.serving.front.model_view import CLASS, ModelView, TensorSpec
from flatout.serving.front.oip_request import (
    GivenTensor,
    OipRequest,
    array_of,
    check_tensor,
    elements_of,
    is_prepared,
    parse_oip,
    row_count,
)
from flatout.serving.front.photo_bytes import photo_of_text
from flatout.serving.front.refusals import Refusal

_MOST_PLANS, _LONGEST_HEADER = 512, 4096
_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_BINARY = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n%b"


class _Placed(NamedTuple):
    """A tensor of numbers in the body."""

    name: str
    dtype: np.dtype[Any]
    values: int
    start: int
    shape: tuple[int, ...]


class _Plan(NamedTuple):
    """What a request's JSON says, if all of its tensors are the program's own and lie in the body."""

    request: OipRequest
    rows: int
    sizes: tuple[int, ...]
    placed: tuple[_Placed, ...]


class OipInfer:
    """Clients send the same JSON again and again before their tensors, so what it means is kept."""

    def __init__(self, desk: Desk, view: ModelView) -> None:
        self._desk, self._view = desk, view
        self._plans: dict[bytes, _Plan] = {}
        self._described: dict[tuple[str, tuple[int, ...], int], bytes] = {}
        names = orjson.dumps({"model_name": view.name, "model_version": view.version})
        self._begin = names[:-1] + b","
        self._every_output = tuple((name, False) for name in view.outputs), tuple((name, True) for name in view.outputs)

    def __call__(self, exchange: Exchange) -> None:
        body, headers = exchange.body, exchange.headers
        if b"content-encoding" in headers:
            body = unpacked(body, headers[b"content-encoding"], self._desk.limits.unpacked_bytes)
        given = headers.get(b"inference-header-content-length")
        if given is None:
            self._ask(exchange, parse_oip(body, len(body)), body)
            return
        size = int(given) if given.isdigit() else -1
        if not 0 <= size <= len(body):
            came = f"{given[:60].decode('latin-1')!r}, and a body of {len(body):,} bytes"
            raise Refusal(400, f"Inference-Header-Content-Length is the size of the JSON in the body, got {came}")
        if size == 0:
            self._ask(exchange, self._bare(body), body)
            return
        header = body[:size]
        plan = self._plans.get(header)
        if plan is None:
            request = parse_oip(header, size)
            plan = self._planned(request)
            if plan is None:
                self._ask(exchange, request, body)
                return
            if request.id is None and size <= _LONGEST_HEADER:
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                self._plans[header] = plan
        self._run(exchange, plan, body)

    def _planned(self, request: OipRequest) -> _Plan | None:
        view, tensors = self._view, request.tensors
        if self._desk.hooks.before is not None or not all(tensor.is_binary for tensor in tensors):
            return None
        if not is_prepared(view, tensors):
            return None
        rows, by_name = row_count(tensors), {tensor.name: tensor for tensor in tensors}
        for tensor in tensors:
            check_tensor(view.prepared[tensor.name], tensor)
        self._check_wanted(request)
        placed = tuple(
            _Placed(one.name, _bytes_type(one.datatype), math.prod(one.shape), one.start, one.shape) for one in tensors
        )
        return _Plan(request, rows, _sizes(view.prepared, by_name), placed)

    def _run(self, exchange: Exchange, plan: _Plan, body: bytes) -> None:
        request, checks = plan.request, self._view.checks
        _check_length(request, body)
        columns = []
        for name, dtype, count, start, shape in plan.placed:
            array = np.frombuffer(body, dtype, count, start).reshape(shape)
            if name in checks:
                checks[name](array)
            columns.append((name, array))
        deadline_s = deadline_after(request.timeout_us / 1e6) if request.timeout_us else 0.0
        answer = partial(self._answer, request)
        self._desk.ask_prepared(exchange, self._view, columns, plan.rows, plan.sizes, answer, deadline_s, request.priority)

    def _ask(self, exchange: Exchange, request: OipRequest, body: bytes) -> None:
        """Tensors in the JSON, or raw inputs."""
        view, tensors = self._view, request.tensors
        _check_length(request, body)
        self._check_wanted(request)
        deadline_s = deadline_after(request.timeout_us / 1e6) if request.timeout_us else 0.0
        answer = partial(self._answer, request)
        if not is_prepared(view, tensors) or (view.coincide and self._desk.hooks.before is not None):
            row_count(tensors)
            raw = {tensor.name: _raw_column(view, tensor, body) for tensor in tensors}
            self._desk.ask_raw(exchange, view, raw, answer, deadline_s, request.priority)
            return
        if self._desk.hooks.before is not None:
            names = ", ".join(view.raw_specs)
            raise Refusal(400, f"this server changes raw rows with a hook: send the raw inputs {names}")
        columns = []
        for tensor in tensors:
            check_tensor(view.prepared[tensor.name], tensor)
            array = array_of(tensor, body)
            if tensor.name in view.checks:
                view.checks[tensor.name](array)
            columns.append((tensor.name, array))
        sizes = _sizes(view.prepared, {tensor.name: tensor for tensor in tensors})
        self._desk.ask_prepared(exchange, view, columns, row_count(tensors), sizes, answer, deadline_s, request.priority)

    def _bare(self, body: bytes) -> OipRequest:
        """The whole body is the one input of the model; its outputs are sent as bytes."""
        specs = self._view.raw_specs
        if len(specs) != 1:
            raise Refusal(400, f"a body without JSON needs a model with one input; {self._view.name} has {', '.join(specs)}")
        ((name, spec),) = specs.items()
        if spec.dtype is None:
            tensor = GivenTensor(name, "BYTES", (1,), [body])
        else:
            tensor = GivenTensor(name, spec.datatype, _bare_shape(spec, len(body)), None, 0, len(body))
        return OipRequest(None, (tensor,), None, True, 0, 0, len(body))

    def _check_wanted(self, request: OipRequest) -> None:
        if request.wanted is None or self._desk.hooks.after is not None:
            return
        for name, _ in request.wanted:
            if name not in self._view.outputs:
                raise Refusal(400, f"the model {self._view.name} has the outputs {', '.join(self._view.outputs)}; got {name!r}")

    def _answer(self, request: OipRequest, exchange: Exchange, outputs: Mapping[str, Any], named: bool) -> None:
        view = self._view
        wanted = request.wanted
        if named:
            wanted = wanted or tuple((name, request.all_binary) for name in outputs)
        elif wanted is None:
            wanted = self._every_output[request.all_binary]
        described, pieces = [], []
        for name, binary in wanted:
            if not named and name == CLASS and view.classes is not None:
                column: Any = [view.classes[number] for number in view.class_numbers(outputs)]
            elif name in outputs:
                column = outputs[name]
            else:
                raise Refusal(400, f"the answer has the columns {', '.join(outputs)}; got a request for {name!r}")
            if binary:
                is_text = isinstance(column, list)
                piece = bytes_packed(text.encode() for text in column) if is_text else column.tobytes()
                shape = (len(column),) if is_text else column.shape
                key = (name, shape, len(piece))
                text = self._described.get(key) or self._describe(key, self._datatype(name, column, named))
                pieces.append(piece)
                described.append(text)
            else:
                described.append(self._in_json(name, column, named))
        head = self._begin if request.id is None else b'%b"id":%b,' % (self._begin, orjson.dumps(request.id))
        body = b'%b"outputs":[%b]}' % (head, b",".join(described))
        times = timing_headers(view, exchange)
        first = _BINARY % (len(body), times) if pieces else _JSON + times
        if pieces:
            body = b"".join((body, *pieces))
        if b"accept-encoding" in exchange.headers:
            body, line = packed(body, exchange.headers[b"accept-encoding"])
            first += line
        exchange.send(first, body)

    def _datatype(self, name: str, column: Any, named: bool) -> str:
        if isinstance(column, list):
            return "BYTES"
        return datatype_of_array(column) if named or name not in self._view.outputs else self._view.outputs[name].datatype

    def _describe(self, key: tuple[str, tuple[int, ...], int], datatype: str) -> bytes:
        name, shape, size = key
        written = {"name": name, "datatype": datatype, "shape": list(shape), "parameters": {"binary_data_size": size}}
        text = orjson.dumps(written)
        if self._desk.hooks.after is None:  # a hook may return another type in the same number of bytes
            if len(self._described) >= _MOST_PLANS:
                self._described.clear()
            self._described[key] = text
        return text

    def _in_json(self, name: str, column: Any, named: bool) -> bytes:
        datatype = self._datatype(name, column, named)
        if datatype == "BF16":
            raise Refusal(400, f"output {name!r} is BF16, which JSON does not have: ask for it with 'binary_data'")
        shape = [len(column)] if isinstance(column, list) else list(column.shape)
        data = column if isinstance(column, list) else np.ascontiguousarray(column).reshape(-1)
        written = {"name": name, "datatype": datatype, "shape": shape, "data": data}
        return orjson.dumps(written, option=orjson.OPT_SERIALIZE_NUMPY)


def _bytes_type(datatype: str) -> np.dtype[Any]:
    """The copy into a room of type bool makes every byte but 0 true."""
    return np.dtype(np.uint8) if datatype == "BOOL" else NUMPY_TYPES[datatype]


def _check_length(request: OipRequest, body: bytes) -> None:
    if len(body) != request.body_bytes:
        came = f"it has {len(body):,}"
        raise Refusal(400, f"the JSON and its 'binary_data_size' say that the body has {request.body_bytes:,} bytes; {came}")


def _sizes(specs: Mapping[str, TensorSpec], given: Mapping[str, GivenTensor]) -> tuple[int, ...]:
    """The sizes that the program leaves open, in the order of its inputs."""
    return tuple(
        given[name].shape[axis + 1] for name, spec in specs.items() for axis, size in enumerate(spec.shape) if size is None
    )


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


def _raw_column(view: ModelView, tensor: GivenTensor, body: bytes) -> Any:
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
    return array


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
