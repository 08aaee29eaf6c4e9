"""An inference request of the Open Inference Protocol: its JSON, checked against the model, and where its tensors lie."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from flatout.serving.front.asked_times import checked_priority
from flatout.serving.front.datatypes import NUMPY_TYPES
from flatout.serving.front.model_view import ModelView, TensorSpec
from flatout.serving.front.refusals import Refusal

_MOST_DIMENSIONS = 32
_MOST_VALUES = 1 << 40
_SHARED_MEMORY = "shared_memory_region"


@dataclass(frozen=True)
class GivenTensor:
    """`data` is that of the JSON; else the bytes from `start` to `end` of the body."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any = None
    start: int = 0
    end: int = 0

    @property
    def is_binary(self) -> bool:
        return self.data is None


@dataclass(frozen=True)
class OipRequest:
    """`wanted` names outputs, each with whether it is sent as bytes; None is all of them, in the form `all_binary`."""

    id: str | None
    tensors: tuple[GivenTensor, ...]
    wanted: tuple[tuple[str, bool], ...] | None
    all_binary: bool
    timeout_us: int
    priority: int
    body_bytes: int

    @cached_property
    def is_all_binary(self) -> bool:
        return self.all_binary if self.wanted is None else all(binary for _, binary in self.wanted)


def parse_oip(header: bytes | memoryview, header_bytes: int) -> OipRequest:
    """`header_bytes` is where the tensors begin in the body."""
    try:
        found = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the request is no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, f"expected a JSON object with 'inputs', got {json_kind(found)}")
    return checked_request(found, header_bytes)


def checked_request(found: Mapping[str, Any], header_bytes: int) -> OipRequest:
    """Of the JSON's content."""
    parameters = _parameters(found, "the request")
    inputs = found.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise Refusal(400, f"expected 'inputs' as a list of tensors, got {json_kind(inputs)}")
    tensors, start = [], header_bytes
    for place, given in enumerate(inputs):
        tensors.append(_tensor(given, place, start))
        start = max(start, tensors[-1].end)
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        (twice, _), *_ = Counter(names).most_common(1)
        raise Refusal(400, f"the input {twice!r} came twice")
    timeout = parameters.get("timeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise Refusal(400, f"the parameter 'timeout' is a whole number of microseconds, got {str(timeout)[:60]!r}")
    all_binary = _flag(parameters, "binary_data_output", "the request")
    return OipRequest(
        _id(found.get("id")),
        tuple(tensors),
        _wanted(found.get("outputs"), all_binary),
        all_binary,
        timeout,
        checked_priority(parameters.get("priority", 0), "the parameter 'priority'"),
        start,
    )


def _id(given: Any) -> str | None:
    if given is None or isinstance(given, str):
        return given or None
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    raise Refusal(400, f"expected 'id' as text, got {json_kind(given)}")


def _parameters(given: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    found = given.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise Refusal(400, f"expected 'parameters' of {where} as a JSON object, got {json_kind(found)}")
    return found


def _flag(parameters: Mapping[str, Any], name: str, where: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(400, f"the parameter {name!r} of {where} is true or false, got {str(value)[:60]!r}")
    return value


def _tensor(given: Any, place: int, start: int) -> GivenTensor:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise Refusal(400, f"input {place}: expected a JSON object with 'name', 'shape', 'datatype' and data")
    name, datatype, shape = given["name"], given.get("datatype"), given.get("shape")
    if datatype != "BYTES" and (not isinstance(datatype, str) or datatype not in NUMPY_TYPES):
        known = ", ".join([*NUMPY_TYPES, "BYTES"])
        raise Refusal(400, f"input {name!r}: expected 'datatype' as one of {known}; got {str(datatype)[:60]!r}")
    sizes: list[int] = shape if isinstance(shape, list) else []
    if not 0 < len(sizes) <= _MOST_DIMENSIONS or not all(type(size) is int and 0 <= size <= _MOST_VALUES for size in sizes):
        came = str(shape)[:80]
        raise Refusal(400, f"input {name!r}: expected 'shape' as a list of whole numbers, rows first; got {came}")
    if math.prod(sizes) > _MOST_VALUES:
        raise Refusal(400, f"input {name!r}: a tensor of shape {shape} is larger than any that can be sent")
    parameters = _parameters(given, f"input {name!r}")
    if _SHARED_MEMORY in parameters:
        raise Refusal(400, f"input {name!r}: this server does not have the extension for shared memory")
    size = parameters.get("binary_data_size")
    if size is None:
        if given.get("data") is None:
            raise Refusal(400, f"input {name!r}: expected 'data', or the parameter 'binary_data_size'; got neither")
        return GivenTensor(name, datatype, tuple(sizes), given["data"])
    if given.get("data") is not None:
        raise Refusal(400, f"input {name!r}: expected 'data' or the parameter 'binary_data_size', got both")
    if type(size) is not int or size < 0:
        raise Refusal(400, f"input {name!r}: 'binary_data_size' is a whole number of bytes, got {str(size)[:60]!r}")
    return GivenTensor(name, datatype, tuple(sizes), None, start, start + size)


def _wanted(given: Any, all_binary: bool) -> tuple[tuple[str, bool], ...] | None:
    if given is None or given == []:
        return None
    if not isinstance(given, list):
        raise Refusal(400, f"expected 'outputs' as a list of objects with 'name', got {json_kind(given)}")
    found: dict[str, bool] = {}
    for place, output in enumerate(given):
        if not isinstance(output, dict) or not isinstance(output.get("name"), str):
            raise Refusal(400, f"output {place}: expected a JSON object with 'name'")
        name = output["name"]
        parameters = _parameters(output, f"output {name!r}")
        if _SHARED_MEMORY in parameters or parameters.get("classification"):
            raise Refusal(400, f"output {name!r}: this server has no extension for shared memory or classification")
        found[name] = _flag(parameters, "binary_data", f"output {name!r}") if "binary_data" in parameters else all_binary
    return tuple(found.items())


def is_prepared(view: ModelView, tensors: Sequence[GivenTensor]) -> bool:
    """Whether these are the program's own inputs. Refusal if they are neither those nor the raw inputs."""
    names = {tensor.name for tensor in tensors}
    own = names == view.prepared.keys() and _all_fit(view.prepared, tensors)
    if own and (view.coincide or not (names == view.raw_specs.keys() and _all_fit(view.raw_specs, tensors))):
        return True
    if names == view.raw_specs.keys():
        return False
    if names == view.prepared.keys():
        return True  # and the shapes are wrong
    raise Refusal(400, _names_differ(view, names))


def _all_fit(specs: Mapping[str, TensorSpec], tensors: Sequence[GivenTensor]) -> bool:
    return all(
        specs[tensor.name].datatype == tensor.datatype and specs[tensor.name].fits(tensor.shape[1:]) for tensor in tensors
    )


def _names_differ(view: ModelView, names: set[str]) -> str:
    raw, prepared = view.raw_specs.keys(), view.prepared.keys()
    wanted = raw if len(names & raw) >= len(names & prepared) else prepared
    said = [f"the model {view.name} takes the inputs {', '.join(view.raw_specs)}"]
    if view.prepared.keys() != view.raw_specs.keys():
        said.append(f"or, prepared by the client, {', '.join(view.prepared)}")
    missing, unknown = [name for name in wanted if name not in names], sorted(names - wanted)
    came = [f"missing {', '.join(missing)}"] if missing else []
    came += [f"unknown {', '.join(unknown)}"] if unknown else []
    return f"{' '.join(said)}; {'; '.join(came)}"


def row_count(tensors: Sequence[GivenTensor]) -> int:
    rows = tensors[0].shape[0]
    for tensor in tensors:
        if tensor.shape[0] != rows:
            raise Refusal(400, f"inputs differ in rows: {tensors[0].name!r} has {rows}, {tensor.name!r} has {tensor.shape[0]}")
    if not rows:
        raise Refusal(400, f"the input {tensors[0].name!r} has no rows; expected 1 or more")
    return rows


def check_tensor(spec: TensorSpec, tensor: GivenTensor) -> None:
    """Refusal if it is not what the program takes."""
    if tensor.datatype != spec.datatype:
        raise Refusal(400, f"input {tensor.name!r}: expected datatype {spec.datatype}, got {tensor.datatype}")
    if not spec.fits(tensor.shape[1:]):
        wanted = spec.metadata()["shape"]
        raise Refusal(400, f"input {tensor.name!r}: expected shape {wanted}, got {list(tensor.shape)}")
    check_size(tensor)


def check_size(tensor: GivenTensor) -> None:
    if tensor.is_binary and tensor.datatype != "BYTES":
        wanted = math.prod(tensor.shape) * NUMPY_TYPES[tensor.datatype].itemsize
        if tensor.end - tensor.start != wanted:
            form = f"{tensor.datatype} of shape {list(tensor.shape)} is {wanted:,} bytes"
            raise Refusal(400, f"input {tensor.name!r}: {form}, 'binary_data_size' is {tensor.end - tensor.start:,}")


def json_kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)
