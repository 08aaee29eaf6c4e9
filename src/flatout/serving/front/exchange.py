"""One request and its answer."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from flatout.serving.asking import ServedModel, Timing
from flatout.serving.front.known_heads import KnownHead
from flatout.serving.front.refusals import Refusal, refusal_for
from flatout.serving.front.watching import MOMENTS, AnsweredRequest, Watching

NO_ARM, STABLE, CANARY, INSTEAD, UNTIMED = range(5)
"""To which version a request belongs while a canary is judged. INSTEAD: the canary failed, and the stable version answers.
UNTIMED: of the stable version, where a control tells how long that takes under the canary's load."""

_WRITTEN_AT_ONCE = 1 << 16  # a copy of so few bytes is cheaper than a second call
_NOT_RUN = Timing()
_made: Any = tuple.__new__  # a third of the time of a NamedTuple's own
_log = logging.getLogger("flatout.serving")


class Shared(Protocol):
    """What the connections of a process share."""

    watching: Watching
    common_headers: bytes


class Answerable(Protocol):
    def finish(self, exchange: HttpExchange) -> None:
        """Writes the answers that are due, in the order of their requests."""
        ...

    @property
    def site(self) -> Shared: ...


class RequestExchange(ABC):
    """Handlers call `send` or `refuse` once; later calls do nothing. Headers have lower-case names.

    `begun` is when its first byte came, `arrived` its last; `parsed`, `decoded` and `computed` are when that was done.
    """

    method: bytes
    url: bytes
    headers: dict[bytes, bytes]
    body: bytes
    begun: float
    arrived: float
    parsed: float
    # one object a request: what most of them leave as it is costs nothing here
    decoded = computed = hook_s = 0.0
    finished = False
    head: KnownHead | None = None
    model: ServedModel | None = None
    rows = 0
    timing = _NOT_RUN
    arm = NO_ARM
    instead: Callable[[RequestExchange], None] | None = None  # what answers if the canary or the control fails
    feedback_id = b""  # the header with which the answer can be labelled later

    @abstractmethod
    def send(self, head: bytes, body: bytes, status_code: int = 200) -> None:
        """`head` is the status line and headers, each with its line end, except Content-Length."""

    @abstractmethod
    def refuse(self, refusal: Refusal) -> None: ...

    def send_json(self, body: bytes, headers: bytes = b"") -> None:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + headers, body)

    def answered_instead(self, refusal: Refusal) -> bool:
        """Whether the stable version answers what the canary, or the control, failed to answer."""
        instead, self.instead = self.instead, None
        if instead is None or refusal.status < 500 or self.finished:
            return False
        self.arm = INSTEAD if self.arm == CANARY else UNTIMED
        self.guarded(lambda: instead(self))
        return True

    def fail(self, error: BaseException, doing: str = "") -> None:
        self.refuse(refusal_for(error, doing))

    def guarded(self, step: Callable[[], None], doing: str = "") -> None:
        """Runs a later step of a handler: its errors become the answer."""
        try:
            step()
        except Exception as error:
            self.fail(error, doing)

    def tell(self, watching: Watching, status_code: int, answer_bytes: int) -> None:
        """The answer was sent."""
        timing = self.timing
        moments = MOMENTS.pack(
            self.begun,
            self.arrived,
            self.parsed,
            self.decoded,
            self.computed,
            perf_counter(),
            self.hook_s,
            timing.queue_s,
            timing.copy_s,
            timing.compute_s,
        )
        told = (self.model, self.method, self.url, status_code, self.rows, answer_bytes, moments, timing, self.arm)
        try:
            watching.answered(_made(AnsweredRequest, told))
        except Exception:  # counting must not break answers
            _log.exception("counting an answer failed")


class HttpExchange(RequestExchange):
    answer: tuple[bytes, ...] | None = None
    held_bytes = 0  # of a large body, counted by the site
    refusal: Refusal | None = None

    def __init__(
        self,
        connection: Answerable,
        method: bytes,
        url: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        keep_alive: bool,
        begun: float,
        arrived: float,
    ) -> None:
        self.connection = connection
        self.method = method
        self.url = url
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive
        self.begun = begun
        self.arrived = arrived
        self.parsed = perf_counter()

    def send(self, head: bytes, body: bytes, status_code: int = 200) -> None:
        if self.finished:
            return
        self.finished = True
        connection = self.connection
        first = b"%b%bContent-Length: %d\r\n\r\n" % (head, connection.site.common_headers, len(body))
        if not self.keep_alive:
            first = first[:-2] + b"Connection: close\r\n\r\n"
        elif b"connection" in self.headers:  # HTTP/1.0 wants to be told
            first = first[:-2] + b"Connection: keep-alive\r\n\r\n"
        if self.method == b"HEAD":
            body = b""
        self.answer = (first + body,) if len(body) <= _WRITTEN_AT_ONCE else (first, body)
        connection.finish(self)
        self.tell(connection.site.watching, status_code, len(body))

    def send_whole(self, answer: bytes, body_bytes: int) -> None:
        """As `send`, to a client with a known head: `answer` has the headers of every answer already."""
        if self.finished:
            return
        self.finished = True
        self.answer = (answer,)
        connection = self.connection
        connection.finish(self)
        self.tell(connection.site.watching, 200, body_bytes)

    def refuse(self, refusal: Refusal) -> None:
        if self.instead is not None and self.answered_instead(refusal):
            return
        self.send(refusal.head, refusal.body, refusal.status)
