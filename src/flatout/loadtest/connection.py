"""One connection to the server: a request at a time, and the answer to it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Protocol

from flatout.loadtest.libraries import http_library
from flatout.loadtest.outcomes import RequestFailure


class ScheduledRequest(NamedTuple):
    """A request on its way. Times are seconds since the run began."""

    scheduled_s: float
    lag_s: float  # how late the generator was to look at it
    wire: bytes
    is_retry: bool = False


class ConnectionOwner(Protocol):
    """Who the connections belong to."""

    def opened(self, connection: LoadConnection) -> None: ...

    def answered(self, connection: LoadConnection, request: ScheduledRequest, status: int, again: bool) -> None:
        """`again`: the connection can take another request."""
        ...

    def failed(self, connection: LoadConnection, request: ScheduledRequest | None, failure: RequestFailure) -> None:
        """The connection is gone; `request` is the request that was waiting for its answer."""
        ...

    def heard(self, request: ScheduledRequest, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        ...


class LoadConnection(asyncio.Protocol):
    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._tools = http_library("httptools")
        self._parser: Any = self._tools.HttpResponseParser(self)
        self._transport: Any = None
        self.request: ScheduledRequest | None = None
        self.is_open = False
        self.received_bytes = 0
        self._is_framed = False  # a header says how long the body is
        self._ends_by_close = False

    # ---- by the owner ----

    def send(self, request: ScheduledRequest) -> None:
        self.request = request
        self._transport.write(request.wire)

    def abandon(self) -> None:
        """Closes at once. No more calls of the owner follow."""
        self.request, self.is_open = None, False
        if self._transport is not None:
            self._transport.abort()

    # ---- by the loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (self._tools.HttpParserError, self._tools.HttpParserUpgrade):
            if self.is_open:
                self._end(RequestFailure.NOT_HTTP)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_open:
            return
        if self._ends_by_close and self.request is not None and exc is None:
            self._done(self._parser.get_status_code(), again=False)
        else:
            self._end(RequestFailure.RESET)

    # ---- by the parser ----

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.request is not None:
            self._owner.heard(self.request, name, value)
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        # without a length the body lasts until the server closes, as HTTP/1.0 has it
        self._ends_by_close = not (self._is_framed or self._parser.should_keep_alive())
        self._is_framed = False

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue: the answer follows
            return
        if self.request is None:  # an answer that nobody asked for
            self._end(RequestFailure.NOT_HTTP)
            return
        self._done(status, self._parser.should_keep_alive())

    def _done(self, status: int, again: bool) -> None:
        request, self.request = self.request, None
        assert request is not None
        if not again:
            self.is_open = False
            self._transport.close()
        self._owner.answered(self, request, status, again)

    def _end(self, failure: RequestFailure) -> None:
        request, self.request, self.is_open = self.request, None, False
        self._transport.abort()
        self._owner.failed(self, request, failure)
