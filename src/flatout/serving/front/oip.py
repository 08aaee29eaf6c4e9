"""POST .../infer of the Open Inference Protocol v2, with its binary extension."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flatout.serving.front.asked_times import OnOutputs, deadline_after
from flatout.serving.front.compressing import unpacked
from flatout.serving.front.datatypes import NUMPY_TYPES
from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.model_view import ModelView, TensorSpec
from flatout.serving.front.oip_answer import OipAnswers
from flatout.serving.front.oip_raw import raw_column, request_without_json
from flatout.serving.front.oip_request import (
    GivenTensor,
    OipRequest,
    check_tensor,
    is_prepared,
    parse_oip,
    row_count,
)
from flatout.serving.front.oip_tensors import array_of
from flatout.serving.front.packed_columns import PackedColumns, PlacedTensor
from flatout.serving.front.refusals import Refusal
from flatout.serving.front.sampling_desk import AnyDesk
from flatout.serving.records import RowLayout

_MOST_PLANS, _LONGEST_HEADER = 512, 4096


class _Plan(NamedTuple):
    """What a request's JSON says, if all of its tensors are the program's own and lie in the body."""

    request: OipRequest
    body_bytes: int
    timeout_us: int
    rows: int
    sizes: tuple[int, ...]
    placed: tuple[PlacedTensor, ...]
    checked: tuple[PlacedTensor, ...]
    records_at: int  # where the records of a room begin in the body; 0 if its tensors lie in another way
    answer: OnOutputs


class OipInfer:
    """Clients send the same JSON again and again before their tensors, so what it means is kept."""

    def __init__(self, desk: AnyDesk, view: ModelView) -> None:
        self._desk, self._view = desk, view
        self._plans: dict[bytes, _Plan] = {}
        self.view = view
        self._answers = OipAnswers(view)

    def infer(self, exchange: RequestExchange) -> None:
        body, known = exchange.body, exchange.head
        if known is not None and known.json_bytes:
            plan = self._plans.get(body[: known.json_bytes])
            if plan is not None:
                self._run(exchange, plan, body)
                return
        headers = exchange.headers
        if b"content-encoding" in headers:
            body = unpacked(body, headers[b"content-encoding"], self._desk.limits.unpacked_bytes)
        given = headers.get(b"inference-header-content-length")
        if given is None:
            self._ask_and_send(exchange, parse_oip(body, len(body)), body)
            return
        size = int(given) if given.isdigit() else -1
        if not 0 <= size <= len(body):
            came = f"{given[:60].decode('latin-1')!r}, and a body of {len(body):,} bytes"
            raise Refusal(400, f"Inference-Header-Content-Length is the size of the JSON in the body, got {came}")
        if size == 0:
            self._ask_and_send(exchange, request_without_json(self._view, body), body)
            return
        header = body[:size]
        plan = self._plans.get(header)
        if plan is None:
            request = parse_oip(header, size)
            plan = self._planned(request)
            if plan is None:
                self._ask_and_send(exchange, request, body)
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
        placed = tuple(self._placed(one) for one in tensors)
        checked = tuple(one for one in placed if one.check is not None)
        sizes = _sizes(view.prepared, by_name)
        records_at = tensors[0].start if self._are_records(tensors, rows, sizes) else 0
        lying = (rows, sizes, placed, checked, records_at)
        return _Plan(request, request.body_bytes, request.timeout_us, *lying, partial(self._answers.send, request))

    def _placed(self, given: GivenTensor) -> PlacedTensor:
        name, view = given.name, self._view
        quick = view.row_checks.get(name) if given.shape[0] == 1 else None
        return PlacedTensor(name, _bytes_type(given.datatype), given.start, given.shape, view.checks.get(name), quick)

    def _are_records(self, tensors: tuple[GivenTensor, ...], rows: int, sizes: tuple[int, ...]) -> bool:
        ports = self._view.model.inputs
        if [tensor.name for tensor in tensors] != [port.name for port in ports] or any(port.dtype == "bool" for port in ports):
            return False  # the copy of a bool changes bytes
        return RowLayout.of(ports, sizes).is_packed(rows)

    def _run(self, exchange: RequestExchange, plan: _Plan, body: bytes) -> None:
        request, body_bytes, timeout_us, rows, sizes, placed, checked, records_at, answer = plan
        if len(body) != body_bytes:
            _check_length(request, body)
        for one in checked:
            if (one.quick_check is None or not one.quick_check(body, one.start)) and one.check is not None:
                one.check(one.array(body))
        columns = PackedColumns(placed, body, body[records_at:] if records_at else None)
        deadline_s = deadline_after(timeout_us / 1e6) if timeout_us else 0.0
        self._desk.ask_prepared(exchange, self._view, columns, rows, sizes, answer, deadline_s, request.priority)

    def _ask_and_send(self, exchange: RequestExchange, request: OipRequest, body: bytes) -> None:
        self.ask(exchange, request, body, partial(self._answers.send, request))

    def ask(
        self, exchange: RequestExchange, request: OipRequest, body: bytes, answer: OnOutputs, latest_s: float = 0.0
    ) -> None:
        """Tensors in the JSON or in the body, the program's own or raw inputs. `latest_s` is a deadline of the call."""
        view, tensors = self._view, request.tensors
        _check_length(request, body)
        self._check_wanted(request)
        deadline_s = deadline_after(request.timeout_us / 1e6) if request.timeout_us else 0.0
        if latest_s and (not deadline_s or latest_s < deadline_s):
            deadline_s = latest_s
        if not is_prepared(view, tensors) or (view.coincide and self._desk.hooks.before is not None):
            row_count(tensors)
            raw = {tensor.name: raw_column(view, tensor, body) for tensor in tensors}
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

    def _check_wanted(self, request: OipRequest) -> None:
        if request.wanted is None or self._desk.hooks.after is not None:
            return
        for name, _ in request.wanted:
            if name not in self._view.outputs:
                raise Refusal(400, f"the model {self._view.name} has the outputs {', '.join(self._view.outputs)}; got {name!r}")


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
