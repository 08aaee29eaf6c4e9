"""What all connections of one process share: routes, limits, counts."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Protocol

from flatout.serving.front.canary_split import CanarySplit
from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.known_heads import KnownHeads
from flatout.serving.front.limits import Limits
from flatout.serving.front.oip import OipInfer
from flatout.serving.front.refusals import Refusal
from flatout.serving.front.watching import Watching

LARGE_BODY = 1 << 20  # bytes: such bodies count among those that all connections hold
Infers = dict[tuple[str, str], OipInfer]
Handler = Callable[[RequestExchange], None]
OPEN_PATHS = (b"/v2/health/live", b"/v2/health/ready")  # who watches over a server has no token


class Swept(Protocol):
    def sweep(self, now: float) -> None:
        """Ends what takes longer than the limits allow."""
        ...

    def close_if_idle(self) -> None: ...

    @property
    def is_receiving(self) -> bool: ...


class Routes:
    """By method and exact URL; `elsewhere` gets the rest: other spellings, other methods, unknown paths.

    `infers` has those of the Open Inference Protocol by the name and version of the model; the version "" is the newest.
    `splits`: by name, the models with a canary.
    """

    def __init__(
        self,
        gets: dict[bytes, Handler],
        posts: dict[bytes, Handler],
        elsewhere: Handler,
        infers: Infers,
        splits: Mapping[str, CanarySplit] | None = None,
    ) -> None:
        self.gets, self.posts, self.elsewhere, self.infers = gets, posts, elsewhere, infers
        self.splits = splits or {}


class Site:
    def __init__(self, limits: Limits, token: str | None, watching: Watching, routes: Routes) -> None:
        self.limits, self.watching, self.routes = limits, watching, routes
        self.has_token = token is not None
        self._token = b"Bearer " + (token or "").encode()
        self.connections: set[Swept] = set()
        self.in_flight = 0
        self.held_bytes = 0  # of large bodies
        self.known_heads = KnownHeads(LARGE_BODY)
        self.draining = False
        self.common_headers = b""
        self.tick()

    def tick(self) -> None:
        """Once a second or more often: the clock of the Date header."""
        self.common_headers = b"Date: %b\r\n" % formatdate(usegmt=True).encode()

    def check_token(self, url: bytes, headers: dict[bytes, bytes]) -> None:
        given = headers.get(b"authorization", b"")
        scheme, _, rest = given.partition(b" ")
        same = hmac.compare_digest(b"Bearer " + rest.strip() if scheme.lower() == b"bearer" else given, self._token)
        if not same and url.partition(b"?")[0] not in OPEN_PATHS:
            came = "another one" if given else "no Authorization header"
            wanted = b"WWW-Authenticate: Bearer\r\n"
            raise Refusal(401, f"expected the server's token as 'Authorization: Bearer TOKEN', got {came}", wanted)

    def hold(self, size: int) -> None:
        """Counts a large body. Refusal if all connections hold too much already."""
        most = self.limits.held_bytes
        if self.held_bytes + size > most:
            why = f"requests under way have bodies of {self.held_bytes:,} bytes, and {most:,} is the limit"
            raise Refusal(503, f"{why}; retry later", b"Retry-After: 1\r\n")
        self.held_bytes += size

    def handle(self, exchange: RequestExchange) -> None:
        routes, method = self.routes, exchange.method
        self.in_flight += 1
        try:
            if method == b"POST":
                handler = routes.posts.get(exchange.url, routes.elsewhere)
            elif method == b"GET":
                handler = routes.gets.get(exchange.url, routes.elsewhere)
            else:
                handler = routes.elsewhere
            handler(exchange)
        except Exception as error:
            exchange.fail(error)
