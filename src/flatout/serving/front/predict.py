"""/predict: for people. Raw rows in, named answers out, in the form that they came in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from flatout.serving.front.asked_times import timing_headers
from flatout.serving.front.compressing import packed, unpacked
from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.predict_answers import in_csv, many_in_json, one_in_json
from flatout.serving.front.predict_bodies import rows_of_body
from flatout.serving.front.sampling_desk import AnyDesk

_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_CSV = b"HTTP/1.1 200 OK\r\nContent-Type: text/csv; charset=utf-8\r\n"


class Predict:
    def __init__(self, desk: AnyDesk, view: ModelView) -> None:
        self._desk, self._view = desk, view

    def predict(self, exchange: RequestExchange) -> None:
        view, headers, body = self._view, exchange.headers, exchange.body
        exchange.model = view.model
        if b"content-encoding" in headers:
            body = unpacked(body, headers[b"content-encoding"], self._desk.limits.unpacked_bytes)
        content_type = headers.get(b"content-type", b"")
        given = rows_of_body(view, body, content_type)
        as_csv = _wants_csv(headers.get(b"accept", b""), content_type)
        answer = partial(self._answer, given.one, as_csv)
        if given.row is not None:
            self._desk.ask_row(exchange, view, given.row, answer)
        else:
            assert given.columns is not None
            self._desk.ask_raw(exchange, view, given.columns, answer)

    def _answer(self, one: bool, as_csv: bool, exchange: RequestExchange, outputs: Mapping[str, Any], named: bool) -> None:
        view = self._view
        if as_csv:
            head, body = _CSV, in_csv(view, outputs, named)
        else:
            head, body = _JSON, one_in_json(view, outputs, named) if one else many_in_json(view, outputs, named)
        head += timing_headers(view, exchange)
        if b"accept-encoding" in exchange.headers:
            body, line = packed(body, exchange.headers[b"accept-encoding"])
            head += line
        exchange.send(head, body)


def _wants_csv(accept: bytes, content_type: bytes) -> bool:
    """What Accept names; without a word in it, an answer in the form of the request."""
    if b"text/csv" in accept:
        return True
    return content_type.lower().startswith(b"text/csv") and b"json" not in accept
