"""A front on a real port: uvloop in a thread of its own. And a client of bare sockets, for what other clients don't send."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from in_process import InProcessAsking, Watched

from flatout.packaging.package import open_package
from flatout.serving.asking import ServedModel
from flatout.serving.front.app import FrontApp


@dataclass
class Front:
    app: FrontApp
    asking: InProcessAsking
    watched: Watched
    port: int
    loop: asyncio.AbstractEventLoop

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def ask(self, request: bytes, answers: int = 1) -> list[Answer]:
        """On a connection of its own."""
        with self.connect() as wire:
            wire.sendall(request)
            reader = Reader(wire)
            return [reader.answer() for _ in range(answers)]

    def post(self, path: str, body: bytes | Any, headers: Mapping[str, str] | None = None, method: str = "POST") -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if isinstance(body, bytes) else {"Content-Type": "application/json"}
        return self.ask(request(method, path, content, {**kind, **(headers or {})}))[0]

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask(request("GET", path, None, headers or {}))[0]

    def do(self, work: Callable[[], Any]) -> Any:
        """In the front's event loop."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)


def request(method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        found = self.json
        assert set(found) == {"error"} and "Traceback" not in found["error"], found
        assert self.headers["content-type"] == "application/json"
        return str(found["error"])


class Reader:
    """Answers from one connection."""

    def __init__(self, wire: socket.socket, head_only: bool = False) -> None:
        self._wire, self._left, self._head_only = wire, b"", head_only

    def _more(self) -> None:
        piece = self._wire.recv(1 << 16)
        if not piece:
            raise EOFError(self._left)
        self._left += piece

    def answer(self) -> Answer:
        while b"\r\n\r\n" not in self._left:
            self._more()
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = 0 if self._head_only else int(headers.get("content-length", 0))
        while len(self._left) < size:
            self._more()
        body, self._left = self._left[:size], self._left[size:]
        return Answer(int(first.split()[1]), headers, body)

    def is_over(self) -> bool:
        """The other side has closed, and sent nothing more."""
        try:
            return not self._left and not self._wire.recv(1)
        except ConnectionResetError:
            return True


def served(path: Path, name: str = "m", version: str = "1", number: int = 0) -> ServedModel:
    return ServedModel(name, version, number, open_package(path))


@contextmanager
def front(
    *models: ServedModel, asking: InProcessAsking | None = None, tls: ssl.SSLContext | None = None, **more: Any
) -> Iterator[Front]:
    by_name: dict[str, dict[str, ServedModel]] = {}
    for model in models:
        by_name.setdefault(model.name, {})[model.version] = model
    asking, watched = asking or InProcessAsking(), Watched()
    app = FrontApp(by_name, asking, watched, **more)
    loop = uvloop.new_event_loop()
    started, ports = threading.Event(), []

    async def begin() -> asyncio.AbstractServer:
        server = await asyncio.get_running_loop().create_server(app.protocol_factory, "127.0.0.1", 0, ssl=tls)
        ports.append(server.sockets[0].getsockname()[1])
        app.start(asyncio.get_running_loop())
        return server

    def run() -> None:
        server = loop.run_until_complete(begin())
        started.set()
        loop.run_forever()
        server.close()
        app.stop()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(10)
        yield Front(app, asking, watched, ports[0], loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


class EndlessReader(Reader):
    """All answers until the other side closes."""

    def answers(self) -> Iterator[Answer]:
        while True:
            try:
                found = self.answer()
            except (EOFError, ConnectionResetError):
                return
            if found.status != 100:
                yield found
