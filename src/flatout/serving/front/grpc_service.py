"""The Open Inference Protocol over gRPC: the same models, checks and answers as over REST.

Everything except inference asks the handler of the REST path, and its JSON becomes the message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc
import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.grpc_messages import SERVICE, message_class
from flatout.serving.front.grpc_status import status_of
from flatout.serving.front.grpc_tensors import request_of_message, send_message
from flatout.serving.front.refusals import Refusal
from flatout.serving.front.site import LARGE_BODY, Site
from flatout.serving.front.watching import Watching

_INFER_URL = f"/{SERVICE}/ModelInfer".encode()
_LONGEST_S = 86_400.0  # later deadlines are none
_InferRequest = message_class("ModelInferRequest")
Call = Callable[[bytes, Any], Awaitable[bytes]]


class GrpcExchange(RequestExchange):
    """`done` gets the bytes of the answer, or the refusal."""

    def __init__(self, watching: Watching, method: bytes, url: bytes, context: Any) -> None:
        self._watching = watching
        self.method, self.url, self.body = method, url, b""
        metadata = context.invocation_metadata() or ()
        self.headers = {name.encode(): text.encode() if isinstance(text, str) else text for name, text in metadata}
        self.begun = self.arrived = self.parsed = perf_counter()
        self.is_timed = False  # the client's deadline is the one that counts
        self.done: asyncio.Future[bytes | Refusal] = asyncio.get_running_loop().create_future()

    def send(self, head: bytes, body: bytes, status_code: int = 200) -> None:
        self._finish(body, status_code, len(body))

    def refuse(self, refusal: Refusal) -> None:
        if self.instead is not None and self.answered_instead(refusal):
            return
        if refusal.is_late and self.is_timed:
            refusal = Refusal(504, str(refusal))
        self._finish(refusal, refusal.status, 0)

    def _finish(self, answer: bytes | Refusal, status_code: int, size: int) -> None:
        if self.finished:
            return
        self.finished = True
        if not self.done.done():  # the client may have given up
            self.done.set_result(answer)
        self.tell(self._watching, status_code, size)


class _Page(NamedTuple):
    """How a message asks a REST path, and what its JSON is in the answer. `refused` answers where REST has a status."""

    method: bytes
    path: Callable[[Any], str]
    body: Callable[[Any], bytes] = lambda message: b""
    found: Callable[[Any], Any] = lambda found: found
    refused: Mapping[int, Any] = {}


def _model_path(name: str, version: str) -> str:
    return f"/v2/models/{quote(name, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _path_below(below: str, message: Any) -> str:
    return _model_path(message.name, message.version) + below


def _statistics_path(message: Any) -> str:
    return _path_below("/stats", message) if message.name else "/v2/models/stats"


def _load_body(message: Any) -> bytes:
    return orjson.dumps({"parameters": dict.fromkeys(message.parameters)})


def _repository_path(what: str, message: Any) -> str:
    return f"/v2/repository/models/{quote(message.model_name, safe='')}/{what}"


_NOT_READY = {"ready": False}
_PAGES = {
    "ServerLive": _Page(b"GET", lambda message: "/v2/health/live"),
    "ServerReady": _Page(b"GET", lambda message: "/v2/health/ready", refused={503: _NOT_READY}),
    "ModelReady": _Page(b"GET", partial(_path_below, "/ready"), refused={404: _NOT_READY, 503: _NOT_READY}),
    "ServerMetadata": _Page(b"GET", lambda message: "/v2"),
    "ModelMetadata": _Page(b"GET", partial(_path_below, "")),
    "ModelConfig": _Page(b"GET", partial(_path_below, "/config"), found=lambda found: {"config": found}),
    "ModelStatistics": _Page(b"GET", _statistics_path),
    "RepositoryIndex": _Page(
        b"POST",
        lambda message: "/v2/repository/index",
        lambda message: orjson.dumps({"ready": message.ready}),
        lambda found: {"models": found},
    ),
    "RepositoryModelLoad": _Page(b"POST", partial(_repository_path, "load"), _load_body),
    "RepositoryModelUnload": _Page(b"POST", partial(_repository_path, "unload")),
}


class GrpcService:
    def __init__(self, site: Site) -> None:
        self._site = site

    def handler(self) -> Any:
        calls: dict[str, Call] = {name: partial(self._page, name, page) for name, page in _PAGES.items()}
        calls["ModelInfer"] = self._infer
        handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}  # of bytes
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _infer(self, content: bytes, context: Any) -> bytes:
        exchange = GrpcExchange(self._site.watching, b"POST", _INFER_URL, context)
        answer = await self._answered(exchange, partial(self._ask, exchange, content, context), len(content))
        return answer if isinstance(answer, bytes) else await _abort(context, answer)

    async def _page(self, name: str, page: _Page, content: bytes, context: Any) -> bytes:
        exchange = GrpcExchange(self._site.watching, page.method, b"/", context)
        answer = await self._answered(exchange, partial(self._show, exchange, name, page, content), len(content))
        if isinstance(answer, bytes):
            found = page.found(orjson.loads(answer))
        elif answer.status in page.refused:
            found = page.refused[answer.status]
        else:
            return await _abort(context, answer)
        message = message_class(f"{name}Response")()
        json_format.ParseDict(found, message, ignore_unknown_fields=True)
        written: bytes = message.SerializeToString()
        return written

    async def _answered(self, exchange: GrpcExchange, begin: Callable[[], None], size: int) -> bytes | Refusal:
        site, held = self._site, 0
        site.in_flight += 1
        try:
            try:
                if size > LARGE_BODY:
                    site.hold(size)
                    held = size
                begin()
            except Exception as error:
                exchange.fail(error)
            return await exchange.done
        finally:
            site.in_flight -= 1
            site.held_bytes -= held

    def _ask(self, exchange: GrpcExchange, content: bytes, context: Any) -> None:
        site = self._site
        if site.has_token:
            site.check_token(exchange.url, exchange.headers)
        message = _read(_InferRequest, content)
        name, version = message.model_name, message.model_version
        split = site.routes.splits.get(name) if not version else None
        infer = site.routes.infers.get((name, version))
        if infer is None:
            exchange.url = f"{_model_path(name, version)}/infer".encode()
            site.routes.elsewhere(exchange)  # it has the words for what is unknown
            return
        request, body = request_of_message(message)
        exchange.parsed = perf_counter()
        latest_s, left_s = 0.0, context.time_remaining()
        goal_s = infer.view.model.goal_s
        if left_s is not None and 0 < left_s < (goal_s or _LONGEST_S):  # one after the goal's concerns the client alone
            latest_s, exchange.is_timed = time.monotonic() + left_s, True
        if split is None:
            infer.ask(exchange, request, body, partial(send_message, infer.view, request), latest_s)
        else:
            split.shared(exchange, lambda way, given: way.infer.ask(
                given, request, body, partial(send_message, way.infer.view, request), latest_s))  # fmt: skip

    def _show(self, exchange: GrpcExchange, name: str, page: _Page, content: bytes) -> None:
        site = self._site
        message = _read(message_class(f"{name}Request"), content)
        exchange.url, exchange.body = page.path(message).encode(), page.body(message)
        if site.has_token:
            site.check_token(exchange.url, exchange.headers)
        handlers = site.routes.gets if page.method == b"GET" else site.routes.posts
        handlers.get(exchange.url, site.routes.elsewhere)(exchange)


def _read(kind: Any, content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise Refusal(400, f"the request is no {kind.DESCRIPTOR.full_name}: {error}") from None


async def _abort(context: Any, refusal: Refusal) -> bytes:
    code, words, trailing = status_of(refusal)
    await context.abort(code, words, trailing)
    raise AssertionError("abort raises")
