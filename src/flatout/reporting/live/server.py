"""The HTTP server of the live page: reads only, on the standard library.

No part of a URL becomes a path: names of runs are looked up among those that were found. A page of another site can't read
it: the Host header must be this machine's own, or the token must be right, and no other origin is allowed.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from flatout import __version__
from flatout.base.errors import StoreError
from flatout.base.html import to_html
from flatout.base.tree import Doc, TextLine
from flatout.reporting.live.site import LiveSite
from flatout.reporting.live.stream import LiveStream

_PATIENCE_S = 15.0  # for a request to come, and for a viewer to take what was sent
_MOST_STREAMS = 64
_MOST_CONNECTIONS = 128
_GOODBYE_S = 1.5


@dataclass
class _Streams:
    """How many viewers there are; `ended` tells them to stop."""

    count: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def one_more(self) -> Iterator[bool]:
        with self.lock:
            there_is_room = self.count < _MOST_STREAMS
            self.count += there_is_room
        try:
            yield there_is_room
        finally:
            with self.lock:
                self.count -= there_is_room


class LiveServer(ThreadingHTTPServer):
    """`listening`: a bound socket. `token`: None if everyone who reaches the address may look."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, site: LiveSite, token: str | None) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        listening.setblocking(True)
        self.socket = listening
        self.server_address = listening.getsockname()
        self.site, self.token, self.streams = site, token, _Streams()
        self.why_ended = "The watcher has ended. The page shows what it had; flatout report makes a file of it."
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # otherwise the viewer has left
            print(f"flatout: a viewer got no answer: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Tells the viewers, and waits a moment until they have heard it."""
        self.streams.ended.set()
        ends_s = time.monotonic() + _GOODBYE_S
        while self.streams.count and time.monotonic() < ends_s:
            time.sleep(0.02)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = f"flatout/{__version__}", ""
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        self.close_connection = True
        asked = urlsplit(self.path)
        if self._is_refused(asked.query):
            return
        parts = [unquote(part) for part in asked.path.split("/")[1:]]
        if parts == ["favicon.ico"]:
            self._answer(HTTPStatus.NO_CONTENT, "")
        elif parts == [""]:
            self._page(None)
        elif parts == ["events"]:
            self._events(None, asked.query)
        elif len(parts) == 2 and parts[0] == "run":
            self._page(parts[1])
        elif len(parts) == 3 and parts[0] == "run" and parts[2] == "events":
            self._events(parts[1], asked.query)
        else:
            self._say(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _is_refused(self, query: str) -> bool:
        token = self.server.token
        if token is None:
            if not _is_this_machine(self.headers.get("Host", "")):
                self._say(HTTPStatus.MISDIRECTED_REQUEST, "Expected the address that the watcher printed. To use another name "
                          "for this machine: flatout watch --host 0.0.0.0, which asks for a token.")  # fmt: skip
                return True
            return False
        given = parse_qs(query).get("token", [""])[0]
        if given and _same(given, token):
            self._answer(HTTPStatus.SEE_OTHER, "", {
                "Location": urlsplit(self.path).path or "/",
                "Set-Cookie": f"{self._cookie}={token}; HttpOnly; SameSite=Strict; Path=/",
            })  # fmt: skip
            return True
        if _same(self._sent_token(), token):
            return False
        self._say(HTTPStatus.UNAUTHORIZED, "Expected the watcher's token: open the whole address that flatout watch printed.")
        return True

    @property
    def _cookie(self) -> str:
        """Cookies of all ports of a machine are sent to each of them."""
        return f"flatout_{self.server.server_address[1]}"

    def _sent_token(self) -> str:
        scheme, _, rest = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return rest.strip()
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _page(self, name: str | None) -> None:
        try:
            page = self.server.site.page(name)
        except StoreError as error:
            self._say(HTTPStatus.NOT_FOUND, str(error))
            return
        if page is None:
            self._say(HTTPStatus.NOT_FOUND, "No run of this name is here: it was moved or deleted, or never was.")
        else:
            self._answer(HTTPStatus.OK, page.html())

    def _events(self, name: str | None, query: str) -> None:
        view = self.server.site.view(name)
        if view is None:
            self._say(HTTPStatus.NOT_FOUND, "No run of this name is here.")
            return
        streams = self.server.streams
        with streams.one_more() as there_is_room:
            if not there_is_room:
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MOST_STREAMS} pages are open, which is the most.")
                return
            after = self.headers.get("Last-Event-ID") or parse_qs(query).get("after", [""])[0]
            self._head(HTTPStatus.OK, "text/event-stream", {})
            stream = LiveStream(view, after)
            for message in stream.messages(streams.ended, lambda: streams.count, lambda: self.server.why_ended):
                self.wfile.write(message)

    def _say(self, status: HTTPStatus, words: str) -> None:
        self._answer(status, to_html(Doc((TextLine(words),)), "flatout watch"))

    def _answer(self, status: HTTPStatus, body: str, headers: dict[str, str] | None = None) -> None:
        content = body.encode()
        self._head(status, "text/html; charset=utf-8", {"Content-Length": str(len(content)), **(headers or {})})
        self.wfile.write(content)

    def _head(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        always = {
            "Content-Type": kind, "Connection": "close", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
            "Content-Security-Policy": "frame-ancestors 'none'",
        }  # fmt: skip
        for name, value in {**always, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *words: Any) -> None:
        """A viewer is no news."""


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _is_this_machine(host: str) -> bool:
    """A name that another site has made point here (DNS rebinding) is not."""
    name = urlsplit(f"//{host}").hostname if host else None
    if name is None:
        return False
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
