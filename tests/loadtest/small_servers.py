"""Small servers on real sockets, each with one way to behave well or badly."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True)
class Asked:
    """`number` counts all requests of the server from 0."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Line:
    """One connection, as a behaviour sees it."""

    writer: asyncio.StreamWriter

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    def reset(self) -> None:
        """Ends the connection with RST, as a process does that dies."""
        held: socket.socket = self.writer.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


Behaviour = Callable[[Asked, Line], Awaitable[None]]


@dataclass
class Server:
    """Requests that came are in `asked`, in order."""

    port: int
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    stop: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(behaviour: Behaviour, host: str = "127.0.0.1", certificate: tuple[Path, Path] | None = None) -> Iterator[Server]:
    server = Server(0)
    loop = asyncio.new_event_loop()
    started, stopping = threading.Event(), asyncio.Event()
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                asked = await _next(reader, len(server.asked))
                server.asked.append(asked)
                await behaviour(asked, Line(writer))
                if writer.is_closing():
                    return
        writer.close()

    async def main() -> None:
        listening = await asyncio.start_server(connected, host, 0, ssl=tls, backlog=1024)
        server.port = listening.sockets[0].getsockname()[1]
        started.set()
        await stopping.wait()
        listening.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    started.wait(10)

    def stop() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(stopping.set)
            thread.join(10)

    server.stop = stop
    try:
        yield server
    finally:
        stop()
        loop.close()


async def _next(reader: asyncio.StreamReader, number: int) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(number, method, path, headers, body)


async def polite(asked: Asked, line: Line) -> None:
    line.say(OK)


def after_the_first(behaviour: Behaviour) -> Behaviour:
    """The first request, by which a load test looks whether all is well, is answered."""

    async def both(asked: Asked, line: Line) -> None:
        await (polite if asked.number == 0 else behaviour)(asked, line)

    return both


def json_answer(content: Any, status: str = "200 OK") -> bytes:
    body = json.dumps(content).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass(frozen=True)
class InferenceServer:
    """As the Open Inference Protocol v2 says. A request whose tensors do not fit the metadata is answered with 400."""

    models: dict[str, list[dict[str, Any]]]
    extensions: tuple[str, ...] = ("binary_tensor_data",)
    has_index: bool = True

    async def __call__(self, asked: Asked, line: Line) -> None:
        line.say(self._answer(asked))

    def _answer(self, asked: Asked) -> bytes:
        if (asked.method, asked.path) == ("GET", "/v2"):
            return json_answer({"name": "test", "version": "1", "extensions": self.extensions})
        if (asked.method, asked.path) == ("POST", "/v2/repository/index") and self.has_index:
            off = {"name": "unloaded", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
            return json_answer([*({"name": name, "version": "1", "state": "READY"} for name in self.models), off])
        if (asked.method, asked.path) == ("GET", "/v2/models") and not self.has_index:
            return json_answer({"models": list(self.models)})
        for name, inputs in self.models.items():
            if asked.path == f"/v2/models/{name}":
                return json_answer({"name": name, "versions": ["1"], "platform": "test", "inputs": inputs, "outputs": []})
            if asked.path == f"/v2/models/{name}/infer":
                problem = self._problem(inputs, asked)
                return json_answer({"error": problem}, "400 Bad Request") if problem else json_answer({"outputs": []})
        return json_answer({"error": f"no {asked.path}"}, "404 Not Found")

    def _problem(self, inputs: list[dict[str, Any]], asked: Asked) -> str | None:
        size = int(asked.headers.get("inference-header-content-length", len(asked.body)))
        head, raw = json.loads(asked.body[:size]), asked.body[size:]
        if {one["name"] for one in head["inputs"]} != {one["name"] for one in inputs}:
            return "names"
        for given in head["inputs"]:
            known = next(one for one in inputs if one["name"] == given["name"])
            if given["datatype"] != known["datatype"] or len(given["shape"]) != len(known["shape"]):
                return f"type or rank of {given['name']}"
            if any(size not in (-1, got) for size, got in zip(known["shape"], given["shape"], strict=True)):
                return f"shape of {given['name']}"
            count = int(np.prod(given["shape"]))
            if "data" in given:
                if len(np.ravel(given["data"])) != count:
                    return f"count of {given['name']}"
                continue
            length = given["parameters"]["binary_data_size"]
            mine, raw = raw[:length], raw[length:]
            if given["datatype"] == "BYTES":
                found = 0
                while mine:
                    mine = mine[4 + int.from_bytes(mine[:4], "little") :]
                    found += 1
                if found != count:
                    return f"count of {given['name']}"
            elif length != count * {"FP32": 4, "INT64": 8, "UINT8": 1, "BOOL": 1}[given["datatype"]]:
                return f"bytes of {given['name']}"
        return "bytes left over" if raw else None
