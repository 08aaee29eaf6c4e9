"""All connections of one process: who is free, who waits, what came of each request."""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from flatout.loadtest.connection import LoadConnection, ScheduledRequest
from flatout.loadtest.outcomes import RequestFailure

_SWEEP_S = 0.02
_OPENED_AT_ONCE = 32  # more could overflow the queue of a server that accepts slowly: the system asks again after 1 s
_SAID_BY_SERVER = b"x-flatout-"
_NO_SOCKET = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)
COLUMNS = 4  # of a record: scheduled_s, lag_s, latency_s, outcome


@dataclass(frozen=True)
class Dialing:
    """How to reach the server, and how patient to be."""

    host: str  # an address, no name
    port: int
    server_name: str | None  # for TLS; None: no TLS
    verify: bool
    most_connections: int
    timeout_s: float
    retry: bool

    def tls(self) -> ssl.SSLContext | None:
        if self.server_name is None:
            return None
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass
class Heard:
    """Sums of the numbers that the server put into the headers of its answers."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: bytes, value: bytes) -> None:
        try:
            number = float(value)
        except ValueError:
            return
        word = name.lower().decode("latin-1")
        self.sums[word] = self.sums.get(word, 0.0) + number
        self.counts[word] = self.counts.get(word, 0) + 1


class ConnectionPool:
    """Opens connections only when all others are busy, as many as allowed. `on_end` is called after each request has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dialing: Dialing, began_s: float, warm_s: float) -> None:
        self._loop, self._dialing, self._began_s, self._warm_s = loop, dialing, began_s, warm_s
        self._tls = dialing.tls()
        self._free: deque[LoadConnection] = deque()
        self._waiting: deque[ScheduledRequest] = deque()
        self._again: deque[ScheduledRequest] = deque()  # to be asked on a new connection
        self._connections: set[LoadConnection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._closed_bytes = 0
        self.records = array("d")
        self.heard_numbers = Heard()
        self.retried = 0
        self.most_open = 0
        self.has_waited = False  # for a connection, with all of the allowed ones busy
        self._will_open = False
        self.on_end: Callable[[], None] = lambda: None
        self._is_closed = False
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep)

    @property
    def received_bytes(self) -> int:
        return self._closed_bytes + sum(connection.received_bytes for connection in self._connections)

    def ask(self, request: ScheduledRequest) -> None:
        free = self._free
        while free:  # the one that rested longest: all are used in turn, and with them all processes of the server
            connection = free.popleft()
            if connection.is_open:
                connection.send(request)
                return
        self._waiting.append(request)
        if not self._will_open:  # after the next look at the sockets: answers may be there, and connections free, by then
            self._will_open = True
            self._loop.call_soon(self._loop.call_soon, self._open_more)

    def close(self) -> None:
        self._is_closed = True
        self._sweeping.cancel()
        for task in self._opening:
            task.cancel()
        for connection in list(self._connections):
            self._forget(connection)
            connection.abandon()

    # ---- by the connections ----

    def opened(self, connection: LoadConnection) -> None:
        self._connections.add(connection)
        self.most_open = max(self.most_open, len(self._connections))
        self._take_next(connection)

    def answered(self, connection: LoadConnection, request: ScheduledRequest, status: int, again: bool) -> None:
        latency_s = time.monotonic() - self._began_s - request.scheduled_s
        self.records.extend((request.scheduled_s, request.lag_s, latency_s, status))
        if again:
            if self._waiting:
                connection.send(self._waiting.popleft())
            else:
                self._free.append(connection)
        else:
            self._forget(connection)
            self._open_more()
        self.on_end()

    def failed(self, connection: LoadConnection, request: ScheduledRequest | None, failure: RequestFailure) -> None:
        self._forget(connection)
        if request is not None and failure is RequestFailure.RESET and self._dialing.retry and not request.is_retry:
            self.retried += request.scheduled_s >= self._warm_s
            self._again.append(request._replace(is_retry=True))
        elif request is not None:
            self._lose(request, failure)
        self._open_more()

    def heard(self, request: ScheduledRequest, name: bytes, value: bytes) -> None:
        if request.scheduled_s >= self._warm_s and name[:10].lower() == _SAID_BY_SERVER:
            self.heard_numbers.add(name, value)

    # ---- opening ----

    def _open_more(self) -> None:
        self._will_open = False
        wanted = len(self._waiting) + len(self._again) - len(self._opening)
        if wanted <= 0 or self._is_closed:
            return
        room = self._dialing.most_connections - len(self._connections) - len(self._opening)
        if len(self._connections) >= self._dialing.most_connections:
            self.has_waited = True
        for _ in range(min(wanted, room, _OPENED_AT_ONCE - len(self._opening))):
            task = self._loop.create_task(self._open())
            self._opening.add(task)
            task.add_done_callback(self._tried)

    def _tried(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._open_more()

    async def _open(self) -> None:
        dialing = self._dialing
        try:
            async with asyncio.timeout(dialing.timeout_s):
                await self._loop.create_connection(
                    lambda: LoadConnection(self),
                    dialing.host,
                    dialing.port,
                    ssl=self._tls,
                    server_hostname=dialing.server_name,
                )
        except ConnectionRefusedError:
            self._not_opened(RequestFailure.REFUSED)
        except ConnectionResetError:
            self._not_opened(RequestFailure.RESET)
        except TimeoutError:
            return  # the request it was opened for has timed out before; those that wait now have time left
        except OSError as error:
            self._not_opened(RequestFailure.NO_SOCKET if error.errno in _NO_SOCKET else RequestFailure.UNREACHABLE)

    def _not_opened(self, failure: RequestFailure) -> None:
        for line in (self._again, self._waiting):
            if line:
                self._lose(line.popleft(), failure)
                return

    def _take_next(self, connection: LoadConnection) -> None:
        if self._again:
            connection.send(self._again.popleft())
        elif self._waiting:
            connection.send(self._waiting.popleft())
        else:
            self._free.append(connection)

    # ---- ends without an answer ----

    def _lose(self, request: ScheduledRequest, failure: RequestFailure) -> None:
        latency_s = time.monotonic() - self._began_s - request.scheduled_s
        self.records.extend((request.scheduled_s, request.lag_s, latency_s, failure))
        self.on_end()

    def _forget(self, connection: LoadConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._closed_bytes += connection.received_bytes

    def _sweep(self) -> None:
        """Ends requests that took too long since their scheduled time, those without a connection too."""
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)
        expired_s = time.monotonic() - self._began_s - self._dialing.timeout_s
        late = [one for one in self._connections if one.request is not None and one.request.scheduled_s < expired_s]
        for connection in late:
            request = connection.request
            self._forget(connection)
            connection.abandon()
            if request is not None:
                self._lose(request, RequestFailure.TIMED_OUT)
        for line in (self._again, self._waiting):
            while line and line[0].scheduled_s < expired_s:
                self._lose(line.popleft(), RequestFailure.TIMED_OUT)
        if late:
            self._open_more()
