"""Requests of random tensors for a server of the Open Inference Protocol v2 (flatout, Triton, KServe), by its metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from flatout.base.errors import UnusableServer, UsageError
from flatout.loadtest.one_answer import OneAnswer
from flatout.loadtest.requests import LoadRequest

Array = np.ndarray[Any, Any]
Ask = Callable[[LoadRequest], OneAnswer]

_TYPES: Mapping[str, str] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2", "INT32": "<i4",
    "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_VARIANTS = 16
_MOST_BYTES = 64 << 20  # of all variants together
_ANY_SIZE = 64  # where the model takes any size, except in the first place, which counts rows
_WORDS = ("a", "clerk", "no", "blue", "x1", "medium", "north", "yes")


def infer_requests(ask: Ask, model: str | None, rows: int, as_json: bool, seed: int) -> list[LoadRequest]:
    """Asks the server for its models and what they take. `as_json` is for servers with a broken binary extension."""
    server = _said(ask, LoadRequest("GET", "/v2", ())) or _said(ask, LoadRequest("GET", "/v2/", ()))  # as KServe has it
    if not isinstance(server, dict):
        told = "tell what to send: --row, --rows or --body, or a path in the URL to GET"
        raise UnusableServer(f"GET /v2 says that this is no server of the Open Inference Protocol v2; {told}")
    name = model or _only_model(ask)
    path = f"/v2/models/{quote(name, safe='')}"
    answer = ask(LoadRequest("GET", path, ()))
    metadata = answer.json()
    if answer.status != 200 or not isinstance(metadata, dict):
        raise UnusableServer(f"GET {path} gives no metadata: {answer.status} {answer.excerpt()}")
    inputs = metadata.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise UnusableServer(f"GET {path}: the metadata of {name} has no inputs: {answer.excerpt()}")
    is_binary = not as_json and "binary_tensor_data" in (server.get("extensions") or ())
    draw = np.random.default_rng(seed)
    made: list[LoadRequest] = []
    size = 0
    while len(made) < _VARIANTS and size < _MOST_BYTES:
        tensors = [_tensor(one, rows, draw) for one in inputs]
        made.append((_binary if is_binary else _plain)(f"{path}/infer", tensors))
        size += len(made[-1].body)
    return made


def _said(ask: Ask, request: LoadRequest) -> Any:
    answer = ask(request)
    return answer.json() if answer.status == 200 else None


def _only_model(ask: Ask) -> str:
    listed = _said(ask, LoadRequest("POST", "/v2/repository/index", (("Content-Type", "application/json"),), b'{"ready":true}'))
    if listed is None:  # the extension is optional, and some servers have this instead
        listed = _said(ask, LoadRequest("GET", "/v2/models", ()))
    if isinstance(listed, dict):
        listed = listed.get("models")
    names = sorted({name for one in listed or () if (name := _ready_name(one))})
    if len(names) == 1:
        return names[0]
    if not names:
        raise UnusableServer("the server lists no model that is ready: name it with --model")
    raise UsageError(f"the server has {len(names)} models, pick one: --model {names[0]} (there are {', '.join(names)})")


def _ready_name(listed: Any) -> str | None:
    if isinstance(listed, str):
        return listed
    if not isinstance(listed, dict) or listed.get("state", "READY") != "READY":
        return None
    name = listed.get("name")
    return name if isinstance(name, str) else None


def _tensor(described: Any, rows: int, draw: np.random.Generator) -> tuple[str, str, Array]:
    try:
        name, kind, sizes = str(described["name"]), str(described["datatype"]), [int(size) for size in described["shape"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableServer(f"an input of the model needs name, datatype and shape, got {described!r}") from error
    shape = [size if size >= 0 else rows if place == 0 else _ANY_SIZE for place, size in enumerate(sizes)]
    if kind == "BYTES":
        return name, kind, draw.choice(np.array(_WORDS, dtype=object), shape)
    if kind not in _TYPES:
        raise UnusableServer(f"input {name} has type {kind}, which can't be made up: send --body")
    dtype = np.dtype(_TYPES[kind])
    if dtype.kind == "f":
        return name, kind, draw.standard_normal(shape).astype(dtype)
    # large numbers would be pixels in UINT8 and unknown tokens or categories in all others
    return name, kind, draw.integers(0, 256 if kind == "UINT8" else 2, shape).astype(dtype)


def _binary(path: str, tensors: Sequence[tuple[str, str, Array]]) -> LoadRequest:
    raw = [_raw(values) for _, _, values in tensors]
    inputs = [
        {"name": name, "shape": list(values.shape), "datatype": kind, "parameters": {"binary_data_size": len(content)}}
        for (name, kind, values), content in zip(tensors, raw, strict=True)
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    headers = (("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", str(len(head))))
    return LoadRequest("POST", path, headers, head + b"".join(raw))


def _raw(values: Array) -> bytes:
    if values.dtype != object:
        return values.tobytes()
    encoded = [str(value).encode() for value in values.ravel()]
    return b"".join(len(word).to_bytes(4, "little") + word for word in encoded)


def _plain(path: str, tensors: Sequence[tuple[str, str, Array]]) -> LoadRequest:
    inputs = [
        {"name": name, "shape": list(values.shape), "datatype": kind, "data": values.ravel().tolist()}
        for name, kind, values in tensors
    ]
    body = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    return LoadRequest("POST", path, (("Content-Type", "application/json"),), body)
