"""Whole servers in processes of their own, as `flatout serve` starts them, and clients that check every answer."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from interpreters import ForkedPython

LIMIT_S = 60.0
_PROGRAM = """
import sys, tempfile
sys.path[:0] = {path!r}
tempfile.tempdir = {temporary!r}
from flatout.packaging import package
from flatout.serving import loading
package.SIZES, loading._LARGEST, loading._DOUBLINGS = (1,), 4, (1, 2, 4)
{code}
from flatout.cli.main import main
sys.argv = ["flatout", "serve", *{arguments!r}]
main()
"""


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class RunningServer:
    """`code` runs before the command, in the supervisor: it sets what has no option."""

    def __init__(self, *arguments: object, code: str = "", cwd: Path | None = None, path: tuple[str, ...] = ()) -> None:
        self.folder = cwd or Path(tempfile.mkdtemp(prefix="flatout-served-"))
        self.out, self.err = self.folder / "server.out", self.folder / "server.err"
        self.temporary = Path(tempfile.mkdtemp(dir=self.folder))
        given = [*map(str, arguments), "--port", "0"]
        program = _PROGRAM.format(arguments=given, code=code, path=list(path), temporary=str(self.temporary))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLATOUT_CACHE": str(self.folder / "cache")}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = ForkedPython(["-c", program], cwd=self.folder, stdout=out, stderr=err, env=environment)
        self.pid = self.process.pid
        self.port = 0
        self.is_encrypted = False

    def __enter__(self) -> RunningServer:
        return self.wait_open()

    def wait_open(self) -> RunningServer:
        self.until(lambda: "serving" in self.out.read_text() or self.process.poll() is not None, "open its port")
        assert self.process.poll() is None, self.said
        url = self.out.read_text().split(" at ")[1].split()[0]
        self.port, self.is_encrypted = int(url.rpartition(":")[2]), url.startswith("https")
        return self

    def __exit__(self, *error: object) -> None:
        below = self.below()
        self.process.kill()
        self.process.wait(LIMIT_S)
        self.until(lambda: not any(map(alive, below)), "leave no process behind")

    @property
    def said(self) -> str:
        return self.err.read_text()

    def until(self, is_so: Callable[[], Any], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < until_s, f"the server did not {what}; it said: {self.said}"
            time.sleep(0.02)

    def ended(self) -> int:
        """Waits for its end; the exit code."""
        code = self.process.wait(LIMIT_S)
        return code if code >= 0 else 128 - code

    # ---- its processes ----

    def below(self) -> list[int]:
        return below(self.pid)

    def fronts(self) -> list[int]:
        """Those that hold the port; the supervisor does too."""
        wanted = {inode for port, inode in listening_sockets() if port == self.port}
        return [pid for pid in self.below() if wanted & socket_inodes(pid)]

    def executors(self) -> list[int]:
        """Neither a front nor the process that starts them."""
        fronts, template = self.fronts(), children(self.pid)
        return [pid for pid in self.below() if pid not in fronts and pid not in template]

    # ---- requests ----

    def connect(self, timeout_s: float = LIMIT_S) -> http.client.HTTPConnection:
        if not self.is_encrypted:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        import ssl

        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=context)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        over: http.client.HTTPConnection | None = None,
    ) -> HttpAnswer:
        connection = over or self.connect()
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return HttpAnswer(answer.status, found, answer.read())
        finally:
            if over is None:
                connection.close()

    def get(self, path: str, **more: Any) -> HttpAnswer:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> HttpAnswer:
        return self.ask("POST", path, body if isinstance(body, bytes) else json.dumps(body or {}).encode(), **more)


@dataclass
class AskedRow:
    """A request, and the answers that are right: by version, or under "" for every version."""

    path: str
    body: bytes
    right: Mapping[str, Any]

    def is_right(self, answer: HttpAnswer) -> bool:
        expected = self.right.get(answer.headers.get("x-flatout-version", ""), self.right.get(""))
        return expected is not None and nearly(answer.json, expected)


@dataclass
class Crowd:
    """Clients in threads that ask one row after the other. `lost` are requests without an answer."""

    server: RunningServer
    rows: list[AskedRow]
    threads: int = 4
    again: bool = False  # ask again where the connection was lost, as after the end of a front
    answered: int = 0
    lost: int = 0
    wrong: list[tuple[int, bytes]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over, self._lock = threading.Event(), threading.Lock()
        self._clients = [threading.Thread(target=self._ask, args=(place,), daemon=True) for place in range(self.threads)]

    def __enter__(self) -> Crowd:
        for client in self._clients:
            client.start()
        self.some_more(20)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        for client in self._clients:
            client.join(LIMIT_S)
            assert not client.is_alive(), "a client still waits for its answer"

    def some_more(self, count: int = 100) -> None:
        wanted = self.answered + count
        self.server.until(lambda: self.answered >= wanted or self._over.is_set(), "answer")

    def _ask(self, place: int) -> None:
        connection = self.server.connect()
        while not self._over.is_set():
            row = self.rows[place % len(self.rows)]
            try:
                answer = self.server.post(row.path, row.body, over=connection)
            except ConnectionRefusedError:
                break  # the port is closed
            except (OSError, http.client.HTTPException):
                connection.close()  # it opens again with the next request
                with self._lock:
                    self.lost += not self.again
                continue
            place += 1
            with self._lock:
                self.answered += 1
                self.versions.append(answer.headers.get("x-flatout-version", ""))
                if answer.status != 200 or not row.is_right(answer):
                    self.wrong.append((answer.status, answer.body))
        connection.close()


def nearly(found: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(nearly(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(nearly, found, expected))
    if isinstance(expected, float):
        return abs(found - expected) <= 1e-4 * max(1.0, abs(expected))
    return bool(found == expected)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


# ---- processes, by what the kernel says ----


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def below(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *below(child)) if alive(one)]


def socket_inodes(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def listening_sockets() -> list[tuple[int, str]]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [(int(row[1].partition(":")[2], 16), row[9]) for row in rows if row[3] == "0A"]


def is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
