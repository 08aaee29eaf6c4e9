"""A watcher in this process, and a viewer without a browser."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flatout.base.listening import bound_socket
from flatout.reporting.live.server import LiveServer
from flatout.reporting.live.site import LiveSite
from flatout.reporting.live.watched import Watched

PATIENCE_S = 20


class Watcher:
    def __init__(self, server: LiveServer) -> None:
        self.server, self.port = server, int(server.server_address[1])

    def get(self, path: str = "/", **headers: str) -> tuple[int, str, dict[str, str]]:
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        asked.request("GET", path, headers=headers)
        answer = asked.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}

    @contextmanager
    def stream(self, path: str = "/events", **headers: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
        """Kind, id and data of each event."""
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        asked.request("GET", path, headers=headers)
        answer = asked.getresponse()
        assert answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream"
        try:
            yield _events(answer)
        finally:
            answer.close()
            asked.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    while line := answer.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "event" in fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}


@contextmanager
def watching(runs: Path, only: str | None = None, token: str | None = None, host: str = "127.0.0.1") -> Iterator[Watcher]:
    server = LiveServer(bound_socket(host, 0), LiveSite(Watched(runs, only)), token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Watcher(server)
    finally:
        server.shutdown()
        thread.join()
        server.end()
