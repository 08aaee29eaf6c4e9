"""Answers of the Open Inference Protocol: JSON that describes the outputs, and their bytes after it or their values in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from flatout.serving.front.asked_times import timing_headers
from flatout.serving.front.compressing import packed
from flatout.serving.front.datatypes import bytes_packed, datatype_of_array
from flatout.serving.front.exchange import HttpExchange, RequestExchange
from flatout.serving.front.known_heads import may_be_packed
from flatout.serving.front.model_view import CLASS, ModelView
from flatout.serving.front.oip_request import OipRequest
from flatout.serving.front.refusals import Refusal
from flatout.serving.front.row_answer import BINARY_HEAD, RowForm, Wanted
from flatout.serving.records import RowLayout, RowOutputs

_MOST_KEPT = 512
_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class OipAnswers:
    """Of one model. Answers of one shape have the same JSON, so it is kept."""

    def __init__(self, view: ModelView) -> None:
        self._view = view
        self._kept: dict[tuple[Any, ...], bytes] = {}
        self._cuts_rows = not view.packed_classes or view.outputs["prediction"].datatype == "INT64"
        self._row_forms: dict[int, RowForm] = {}  # by the identity of what a request wants
        names = orjson.dumps({"model_name": view.name, "model_version": view.version})
        self._begin = names[:-1] + b","
        self._every_output = tuple((name, False) for name in view.outputs), tuple((name, True) for name in view.outputs)

    def send(self, request: OipRequest, exchange: RequestExchange, outputs: Mapping[str, Any], named: bool) -> None:
        """`named`: columns that a hook returned; else views of a room, without class names."""
        if named:
            wanted = request.wanted or tuple((name, request.all_binary) for name in outputs)
        else:
            wanted = request.wanted or self._every_output[request.all_binary]
        if not named and request.id is None and request.is_all_binary:
            if self._cuts_rows and isinstance(outputs, RowOutputs):
                self._send_row(exchange, wanted, outputs)
                return
            body, pieces = self._quickly(wanted, outputs)
        else:
            body, pieces = self._written(request, wanted, outputs, named)
        self._send(exchange, body, pieces)

    def _send(self, exchange: RequestExchange, body: bytes, pieces: Sequence[bytes]) -> None:
        times = timing_headers(self._view, exchange)
        head = BINARY_HEAD % (len(body), times) if pieces else _JSON + times
        if pieces:
            body = b"".join((body, *pieces))
        accepted = exchange.headers.get(b"accept-encoding")
        if accepted is not None and (not pieces or may_be_packed(accepted)):
            body, line = packed(body, accepted)
            head += line
        exchange.send(head, body)

    def _send_row(self, exchange: RequestExchange, wanted: Wanted, outputs: RowOutputs) -> None:
        """As `_quickly`, from the bytes of the row's record."""
        form = self._row_forms.get(id(wanted))
        if form is None or form.wanted is not wanted or form.layout is not outputs.layout:
            form = self._new_form(wanted, outputs.layout)
        pieces, class_bytes = form.pieces(outputs.record)
        if class_bytes not in form.bodies:
            form.bodies[class_bytes] = self._all_described(wanted, outputs, pieces)
        if isinstance(exchange, HttpExchange) and exchange.head is not None and not exchange.head.may_pack:
            timing = exchange.timing
            batch, common = self._view.last_batch.headers(timing), exchange.connection.site.common_headers
            frame = form.frame(batch, common, exchange.head.connection_line, pieces, class_bytes)
            answer = b"".join((frame.begin, b"%.3f" % (timing.queue_s * 1e3), frame.end, *pieces))
            exchange.send_whole(answer, frame.body_bytes)
        else:
            self._send(exchange, form.bodies[class_bytes], pieces)

    def _new_form(self, wanted: Wanted, layout: RowLayout) -> RowForm:
        if len(self._row_forms) >= _MOST_KEPT:
            self._row_forms.clear()
        form = self._row_forms[id(wanted)] = RowForm(self._view, wanted, layout)
        return form

    def _quickly(self, wanted: tuple[tuple[str, bool], ...], outputs: Mapping[str, Any]) -> tuple[bytes, list[bytes]]:
        """All outputs as bytes: the JSON depends only on shapes and sizes."""
        view = self._view
        pieces: list[bytes] = []
        key: list[Any] = [wanted]
        for name, _ in wanted:
            if name == CLASS and view.packed_classes:
                numbers = np.minimum(outputs["prediction"], len(view.packed_classes) - 1).tolist()
                piece = b"".join(map(view.packed_classes.__getitem__, numbers))
                key.append(len(piece))  # the other sizes follow from the shapes
            else:
                column = outputs[name]
                piece = column.tobytes()
                key.append(column.shape)
            pieces.append(piece)
        kept = tuple(key)
        body = self._kept.get(kept)
        if body is None:
            body = self._kept[kept] = self._all_described(wanted, outputs, pieces)
        return body, pieces

    def _all_described(
        self, wanted: tuple[tuple[str, bool], ...], outputs: Mapping[str, Any], pieces: Sequence[bytes]
    ) -> bytes:
        specs = self._view.outputs
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        described = []
        for (name, _), piece in zip(wanted, pieces, strict=True):
            is_class = name == CLASS and name not in outputs
            shape = outputs["prediction"].shape if is_class else outputs[name].shape
            described.append(_described(name, specs[name].datatype, shape, len(piece)))
        return b'%b"outputs":[%b]}' % (self._begin, b",".join(described))

    def _written(
        self, request: OipRequest, wanted: tuple[tuple[str, bool], ...], outputs: Mapping[str, Any], named: bool
    ) -> tuple[bytes, list[bytes]]:
        described: list[bytes] = []
        pieces: list[bytes] = []
        for name, binary in wanted:
            column, datatype = named_output(self._view, name, outputs, named)
            if not binary:
                described.append(_in_json(name, column, datatype))
                continue
            is_text = isinstance(column, list)
            piece = bytes_packed(text.encode() for text in column) if is_text else column.tobytes()
            described.append(_described(name, datatype, (len(column),) if is_text else column.shape, len(piece)))
            pieces.append(piece)
        begin = self._begin if request.id is None else b'%b"id":%b,' % (self._begin, orjson.dumps(request.id))
        return b'%b"outputs":[%b]}' % (begin, b",".join(described)), pieces


def named_output(view: ModelView, name: str, outputs: Mapping[str, Any], named: bool) -> tuple[Any, str]:
    """A column of numbers as an array, or of texts as a list; and its datatype."""
    if not named and name == CLASS and view.classes is not None:
        return [view.classes[number] for number in view.class_numbers(outputs)], "BYTES"
    if name not in outputs:
        raise Refusal(400, f"the answer has the columns {', '.join(outputs)}; got a request for {name!r}")
    column = outputs[name]
    if isinstance(column, list):
        return column, "BYTES"
    return column, datatype_of_array(column) if named else view.outputs[name].datatype


def _described(name: str, datatype: str, shape: tuple[int, ...], size: int) -> bytes:
    return orjson.dumps({"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}})


def _in_json(name: str, column: Any, datatype: str) -> bytes:
    if datatype == "BF16":
        raise Refusal(400, f"output {name!r} is BF16, which JSON does not have: ask for it with 'binary_data'")
    shape = (len(column),) if isinstance(column, list) else column.shape
    data = column if isinstance(column, list) else np.ascontiguousarray(column).reshape(-1)
    written = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return orjson.dumps(written, option=orjson.OPT_SERIALIZE_NUMPY)
