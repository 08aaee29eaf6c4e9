"""HTTP/1.1 on one connection, for uvloop: httptools parses, handlers answer, answers leave in the order of the requests."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import perf_counter
from typing import cast

import httptools

from flatout.serving.front.exchange import HttpExchange
from flatout.serving.front.known_heads import KnownHead
from flatout.serving.front.refusals import Refusal, refusal_for
from flatout.serving.front.site import LARGE_BODY, Site

_IDLE, _HEAD, _BODY, _LEAVING = range(4)
_MANY_PIECES, _SMALL_PIECE = 256, 1024
_LINGER_S, _LINGER_BYTES = 2.0, 16 << 20  # a refused client may still be sending, and reads the answer only afterwards
_MOST_OVERHEAD, _FREE_OVERHEAD = 16, 4096  # chunks may have extensions and trailers, but not without end
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_log = logging.getLogger("flatout.serving")


class HttpConnection(asyncio.Protocol):
    """`_queue` has the requests that were handed to handlers, `_waiting` those that came beyond the limit."""

    __slots__ = ("_begun", "_blocked_since", "_body_bytes", "_chunk_bytes", "_continue_due", "_counts_body", "_deaf",
                 "_discarded", "_fed_bytes", "_head", "_head_bytes", "_headers", "_held_bytes", "_known", "_missing",
                 "_now", "_parser", "_paused", "_phase", "_pieces", "_queue", "_since", "_starting", "_transport",
                 "_unsent", "_url", "_waiting", "site")  # fmt: skip

    def __init__(self, site: Site) -> None:
        self.site = site
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._queue: deque[HttpExchange] = deque()
        self._waiting: deque[HttpExchange] = deque()
        self._phase, self._since = _IDLE, 0.0
        self._now = self._begun = 0.0
        self._blocked_since = 0.0
        self._deaf = self._paused = self._starting = self._continue_due = False
        self._discarded = 0
        self._chunk_bytes = self._head_bytes = 0
        self._head = b""
        self._unsent = 0  # bytes of answers, when it was looked at
        self._held_bytes = 0
        self._known: KnownHead | None = None  # of a body of which a part is missing
        self._missing = 0  # bytes of it
        self._fresh()

    def _fresh(self) -> None:
        """Before the next request."""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._counts_body = False
        self._body_bytes = self._fed_bytes = 0

    # what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        site = self.site
        self._transport, self._since = cast(asyncio.Transport, transport), perf_counter()
        self._parser = httptools.HttpRequestParser(self)
        site.connections.add(self)
        if len(site.connections) > site.limits.connections:
            why = f"the server has its limit of {site.limits.connections:,} open connections; retry later"
            self._refuse(Refusal(503, why, b"Retry-After: 1\r\n"))

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES and self._transport is not None:
                self._transport.abort()
            return
        self._now = perf_counter()
        if self._missing:
            self._collect(data)
        elif self._phase != _IDLE or not self._is_known(data):
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None
        self._chunk_bytes = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_after_upgrade()
        except httptools.HttpParserCallbackError as error:
            self._refuse(refusal_for(error.__context__ or error))
        except httptools.HttpParserError as error:
            self._refuse(Refusal(400, f"this is no valid HTTP/1.1 request: {error}"))
        if self._phase == _HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self.site.limits.header_bytes:
                self._refuse(self._too_large_a_head())
        elif self._counts_body:
            self._fed_bytes += len(data)
            if self._fed_bytes > _MOST_OVERHEAD * (self._body_bytes + _FREE_OVERHEAD):
                self._refuse(Refusal(413, f"{self._fed_bytes:,} bytes were sent for a body of {self._body_bytes:,}"))

    def _is_known(self, data: bytes) -> bool:
        """Takes a request whose head was parsed before: clients send the same head again and again."""
        site = self.site
        end = data.find(b"\r\n\r\n") + 4
        head = data[:end]
        known = site.known_heads.get(head)
        if known is None:
            self._head = head
            return False
        missing = end + known.body_bytes - len(data)
        if not missing and not site.draining:
            self._since = now = self._now
            self._take_known(known, data[end:], True, now)
            return True
        if missing < 0 or site.draining:
            self._head = b""
            return False
        now = self._now
        self._known, self._missing = known, missing
        self._url, self._headers = known.url, known.headers  # if it is refused
        self._phase, self._begun, self._since = _BODY, now, now
        if end < len(data):
            self._pieces.append(data[end:])
        return True

    def _collect(self, data: bytes) -> None:
        """The rest of a body behind a known head."""
        missing = self._missing
        self.on_body(data if len(data) <= missing else data[:missing])
        self._missing = max(0, missing - len(data))
        if self._missing:
            return
        body, keep_alive = b"".join(self._pieces), not self.site.draining
        known, begun = self._known, self._begun
        assert known is not None
        self._fresh()
        self._phase, self._since, self._deaf = _IDLE, self._now, not keep_alive
        self._take_known(known, body, keep_alive, begun)
        if len(data) > missing:
            self.data_received(data[missing:])

    def eof_received(self) -> bool:
        """The client sends nothing more, and may still read: answers under way are written before the connection closes."""
        transport = self._transport
        if not (self._queue or self._waiting) or transport is None or transport.get_extra_info("sslcontext") is not None:
            return False
        (self._waiting or self._queue)[-1].keep_alive = False
        self._deaf = True
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.site.connections.discard(self)
        self._transport = None
        self._parser = None  # it refers to this object
        self._deaf = True
        self._let_go()
        self._queue.clear()

    def pause_writing(self) -> None:
        self._blocked_since = perf_counter()
        self._pace()

    def resume_writing(self) -> None:
        self._blocked_since = 0.0
        self._start_waiting()
        self._pace()

    # what the parser calls

    def on_message_begin(self) -> None:
        self._phase, self._begun = _HEAD, self._now
        self._since = self._now

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == _BODY:  # fields after a chunked body mean nothing here
            return
        name = name.lower()
        if name in self._headers:
            self._repeated(name, value)
        else:
            self._headers[name] = value

    def _repeated(self, name: bytes, value: bytes) -> None:
        before = self._headers[name]
        if name in (b"content-length", b"host", b"inference-header-content-length", b"authorization", b"content-type"):
            if before != value:
                raise Refusal(400, f"the header {name.decode('latin-1')} came twice, with different values")
        else:
            self._headers[name] = before + b", " + value

    def on_headers_complete(self) -> None:
        self._phase = _BODY
        site, headers = self.site, self._headers
        limits = site.limits
        if self._head_bytes + self._chunk_bytes > limits.header_bytes:
            self._check_head()
        self._head_bytes = 0
        if site.has_token:
            site.check_token(self._url, headers)
        length = headers.get(b"content-length")
        if length is not None:
            if b"transfer-encoding" in headers:
                raise Refusal(400, "expected one of Content-Length and Transfer-Encoding, got both")
            if int(length) > limits.body_bytes:
                raise self._too_large_a_body(f"of {int(length):,} bytes")
            if int(length) > LARGE_BODY:
                self._hold(int(length))
        elif b"transfer-encoding" in headers:
            if headers[b"transfer-encoding"].strip().lower() != b"chunked":
                raise Refusal(501, f"expected Transfer-Encoding chunked, got {_text(headers[b'transfer-encoding'])}")
            self._counts_body = True
        if b"host" not in headers and self._parser is not None and self._parser.get_http_version() == "1.1":
            raise Refusal(400, "an HTTP/1.1 request needs one Host header, got none")
        if b"expect" in headers:
            self._expected(headers[b"expect"])

    def on_body(self, piece: bytes) -> None:
        pieces = self._pieces
        pieces.append(piece)
        if self._counts_body:
            self._body_bytes += len(piece)
            if self._body_bytes > self.site.limits.body_bytes:
                raise self._too_large_a_body("with more bytes")
            if self._body_bytes > self._held_bytes + LARGE_BODY:
                self._hold(LARGE_BODY)
        if len(pieces) >= _MANY_PIECES and len(piece) < _SMALL_PIECE > len(pieces[-_MANY_PIECES // 2]):
            # small pieces take more memory than their bytes
            pieces[-_MANY_PIECES // 2 :] = [b"".join(pieces[-_MANY_PIECES // 2 :])]

    def on_message_complete(self) -> None:
        parser, pieces, site = self._parser, self._pieces, self.site
        if self._deaf or parser is None:
            return
        keep_alive = parser.should_keep_alive() and not site.draining
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        method, now = parser.get_method(), self._now
        if self._head and keep_alive:
            site.known_heads.remember(self._head, method, self._url, self._headers, len(body))
            self._head = b""
        exchange = HttpExchange(self, method, self._url, self._headers, body, keep_alive, self._begun, now)
        if self._held_bytes:
            exchange.held_bytes, self._held_bytes = self._held_bytes, 0
        self._fresh()
        self._phase, self._since = _IDLE, now
        if not keep_alive:
            self._deaf = True
        self._take(exchange)

    def _hold(self, size: int) -> None:
        self.site.hold(size)
        self._held_bytes += size

    def _let_go(self) -> None:
        """Of what was not handed to a handler."""
        self.site.held_bytes -= self._held_bytes + sum(exchange.held_bytes for exchange in self._waiting)
        self._held_bytes = 0
        self._waiting.clear()

    # requests in, answers out

    def _take_known(self, known: KnownHead, body: bytes, keep_alive: bool, begun: float) -> None:
        exchange = HttpExchange(self, known.method, known.url, known.headers, body, keep_alive, begun, self._now)
        if keep_alive:
            exchange.head = known
        self._take(exchange)

    def _take(self, exchange: HttpExchange) -> None:
        queue = self._queue
        if queue or self._waiting or self._blocked_since:
            self._accept(exchange)
        else:
            queue.append(exchange)
            self.site.handle(exchange)

    def _accept(self, exchange: HttpExchange) -> None:
        queue = self._queue
        if self._waiting or self._blocked_since or len(queue) >= self.site.limits.requests_in_flight:
            self._waiting.append(exchange)
            self._pace()
            return
        queue.append(exchange)
        self._begin(exchange)

    def _begin(self, exchange: HttpExchange) -> None:
        if exchange.refusal is not None:
            self.site.in_flight += 1
            exchange.refuse(exchange.refusal)
        else:
            self.site.handle(exchange)

    def finish(self, exchange: HttpExchange) -> None:
        self.site.in_flight -= 1
        if exchange.held_bytes:
            self.site.held_bytes -= exchange.held_bytes
            exchange.body = b""
        queue, transport = self._queue, self._transport
        if transport is None or not queue or queue[0] is not exchange:
            return  # it is written after the answers before it, or to nobody
        if len(queue) == 1 and exchange.keep_alive and not self._continue_due and exchange.answer is not None:
            queue.clear()
            for part in exchange.answer:
                transport.write(part)
            if self._waiting:
                self._start_waiting()
            return
        while queue and queue[0].answer is not None:
            first = queue.popleft()
            assert first.answer is not None
            for part in first.answer:
                transport.write(part)
            if not first.keep_alive:
                self._leave()
                return
        if not queue:
            self._since = max(self._since, self._now)
            if self._continue_due:
                self._continue_due = False
                transport.write(_CONTINUE)
        if self._waiting:
            self._start_waiting()

    def _start_waiting(self) -> None:
        if self._starting:  # a handler that answered at once
            return
        self._starting = True
        try:
            queue, waiting, limit = self._queue, self._waiting, self.site.limits.requests_in_flight
            while waiting and len(queue) < limit and not self._blocked_since:
                queue.append(waiting.popleft())
                self._begin(queue[-1])
        finally:
            self._starting = False
        self._pace()

    def _pace(self) -> None:
        """Reads nothing more from a client that has to wait, or does not read."""
        transport, pause = self._transport, bool(self._waiting or self._blocked_since)
        if transport is None or pause == self._paused or transport.is_closing():
            return
        self._paused = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _leave(self) -> None:
        """After the last answer. With unread bytes a plain close would destroy the answer on its way."""
        transport = self._transport
        self._deaf = True
        self._let_go()
        self._queue.clear()
        if transport is None:
            return
        unread = self._phase in (_HEAD, _BODY)
        self._phase, self._since = _LEAVING, perf_counter()
        if unread and not self._blocked_since and transport.can_write_eof():
            transport.write_eof()
            if self._paused:
                self._paused = False
                transport.resume_reading()
        else:
            transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        """As the last answer of the connection: what follows can't be told apart from the request that was refused."""
        if self._deaf:
            return
        self._deaf = True
        if self._phase == _IDLE:
            self._phase = _HEAD
        method, now = b"GET", self._now or perf_counter()
        exchange = HttpExchange(self, method, self._url, self._headers, b"", False, self._begun or now, now)
        exchange.refusal = refusal
        self._fresh()
        self._accept(exchange)

    def _stop_after_upgrade(self) -> None:
        """The request itself was answered as HTTP/1.1. If it had a body, that can't be found any more."""
        if self._queue or self._waiting:
            (self._waiting or self._queue)[-1].keep_alive = False
            self._deaf = True
        elif self._transport is not None:
            self._phase = _BODY
            self._leave()

    @property
    def is_receiving(self) -> bool:
        """Whether a request has begun to come, and is not refused."""
        return self._phase in (_HEAD, _BODY) and not self._deaf and self._transport is not None

    def close_if_idle(self) -> None:
        if self._phase == _IDLE and not self._queue and not self._waiting and self._transport is not None:
            self._transport.close()

    # limits

    def sweep(self, now: float) -> None:
        limits, transport = self.site.limits, self._transport
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        if unsent < self._unsent:  # the client reads, slowly
            self._since = now if self._phase == _LEAVING else self._since
            self._blocked_since = now if self._blocked_since else 0.0
        self._unsent = unsent
        waited_s = now - self._since
        if self._phase == _LEAVING:
            if waited_s > (limits.unread_s if unsent else _LINGER_S):
                transport.abort()
        elif self._blocked_since and now - self._blocked_since > limits.unread_s:
            transport.abort()
        elif self._paused or self._deaf:
            return
        elif self._phase == _HEAD and waited_s > limits.header_s:
            self._refuse(Refusal(408, f"the headers took longer than {limits.header_s:g} s"))
        elif self._phase == _BODY:
            self._check_pace_of_body(waited_s)
        elif self._phase == _IDLE and not self._queue and waited_s > limits.idle_s:
            self._phase = _LEAVING
            transport.close()

    def _check_pace_of_body(self, waited_s: float) -> None:
        limits, came = self.site.limits, sum(map(len, self._pieces))
        if waited_s > limits.body_s:
            self._refuse(Refusal(408, f"the body took longer than {limits.body_s:g} s; {came:,} bytes came"))
        elif waited_s > limits.body_grace_s and came < limits.body_bytes_per_s * waited_s:
            least = f"at least {limits.body_bytes_per_s:g} bytes/s"
            self._refuse(Refusal(408, f"the body came too slowly: expected {least}, got {came:,} bytes in {waited_s:.1f} s"))

    def _check_head(self) -> None:
        if len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers.items()) > (
            self.site.limits.header_bytes
        ):
            raise self._too_large_a_head()

    def _too_large_a_head(self) -> Refusal:
        return Refusal(431, f"the request line and headers take more than {self.site.limits.header_bytes:,} bytes")

    def _too_large_a_body(self, came: str) -> Refusal:
        return Refusal(413, f"expected a body of at most {self.site.limits.body_bytes:,} bytes, got one {came}")

    def _expected(self, value: bytes) -> None:
        if value.strip().lower() != b"100-continue":
            raise Refusal(417, f"expected Expect: 100-continue, got {_text(value)}")
        if self._queue or self._waiting:
            self._continue_due = True
        elif self._transport is not None:
            self._transport.write(_CONTINUE)


def _text(value: bytes) -> str:
    return repr(value[:60].decode("latin-1"))
