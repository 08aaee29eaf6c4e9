"""A server for 30 minutes under load, kills, new versions and bad clients: 0 wrong answers, 0 lost requests, flat memory."""

from __future__ import annotations

import http.client
import os
import random
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch
from _served import LIMIT_S, Question, ServedModels, ServedProcess, is_right, made_models, quiet
from evidence import Bar, Report, options

_CLIENTS = 8
_ANSWER_S = 60.0  # a client that waits longer has lost its request
_LOOK_S = 2.0
_TROUBLE_SHARE = 0.6  # of the time; then nothing is killed or replaced, so that memory of one process can be followed
_WARM_SHARE = 0.3  # of a process's life: memory is compared after it
_LEAST_MIB = 100.0  # smaller processes are compared with this: a page more is no leak
_MOST_GROWTH = 0.02  # of a process's memory in half an hour
_BUSY_S = 10.0  # after a kill or a new version before the next


class Ledger:
    """What all clients saw."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.answers: Counter[str] = Counter()
        self.problems: list[str] = []
        self.late_s: list[float] = []

    def count(self, what: str, problem: str | None = None) -> None:
        with self._lock:
            self.answers[what] += 1
            if problem is not None and len(self.problems) < 100:
                self.problems.append(f"{what}: {problem}")

    def took(self, seconds: float) -> None:
        with self._lock:
            self.late_s.append(seconds)


class OpenLoop:
    """Requests at a fixed rate, whether or not those before are answered. A client asks again after its connection was lost
    (a front was killed) and after 503 (the server says: later)."""

    def __init__(self, server: ServedProcess, models: ServedModels, rate: float, ledger: Ledger, over: threading.Event) -> None:
        self._server, self._questions, self._ledger, self._over = server, models.questions, ledger, over
        self._begin_s, self._step_s = time.monotonic(), 1 / rate
        self._next = 0
        self._lock = threading.Lock()
        self.clients = [threading.Thread(target=self._client, args=(place,), daemon=True) for place in range(_CLIENTS)]

    def _client(self, place: int) -> None:
        dice, connection = random.Random(place), self._connection()
        while not self._over.is_set():
            with self._lock:
                due_s = self._begin_s + self._next * self._step_s
                self._next += 1
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._ask(dice.choice(self._questions), connection)
            self._ledger.took(time.monotonic() - due_s)
        connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=_ANSWER_S)

    def _ask(self, question: Question, connection: http.client.HTTPConnection) -> None:
        until_s = time.monotonic() + _ANSWER_S
        while True:
            try:
                connection.request("POST", question.path, question.body, dict(question.headers))
                answer = connection.getresponse()
                status, version, body = answer.status, answer.headers.get("x-flatout-version", ""), answer.read()
            except TimeoutError:
                connection.close()
                self._ledger.count("lost", f"{question.model} {question.kind}: no answer in {_ANSWER_S:g} s")
                return
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._ledger.count("connections lost")
                if time.monotonic() > until_s:
                    self._ledger.count("lost", f"{type(error).__name__}: {error}")
                    return
                time.sleep(0.01)
                continue
            if status == 503:
                self._ledger.count("later")
                if time.monotonic() > until_s:
                    self._ledger.count("lost", f"503 for {_ANSWER_S:g} s: {body[:200]!r}")
                    return
                time.sleep(0.05)
                continue
            if is_right(question, status, version, body):
                self._ledger.count("right")
            else:
                self._ledger.count("wrong", f"{question.model} {question.kind} version {version}: {status} {body[:200]!r}")
            return


class BadClients:
    """One after the other, until it is over. What the server answers to them is not judged, only what it does to others."""

    def __init__(self, server: ServedProcess, ledger: Ledger, over: threading.Event, seed: int) -> None:
        self._server, self._ledger, self._over, self._dice = server, ledger, over, random.Random(seed)
        self._open: list[socket.socket] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        ways: list[Callable[[socket.socket], None]] = [
            self._slow_body, self._garbage, self._half_closed, self._never_reading, self._oversized, self._aborted, self._idle,
            self._pipelined,
        ]  # fmt: skip
        while not self._over.is_set():
            way = self._dice.choice(ways)
            with suppress(OSError):
                wire = socket.create_connection(("127.0.0.1", self._server.port), 5)
                self._open.append(wire)
                way(wire)
            self._ledger.count(f"bad: {way.__name__.strip('_').replace('_', ' ')}")
            while len(self._open) > 40:
                self._open.pop(0).close()
            self._over.wait(0.1)
        for wire in self._open:
            wire.close()

    def _head(self, length: int) -> bytes:
        return b"POST /models/table/predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length

    def _slow_body(self, wire: socket.socket) -> None:
        wire.sendall(self._head(1000) + b"{")

    def _garbage(self, wire: socket.socket) -> None:
        wire.sendall(self._dice.randbytes(self._dice.choice((10, 3000, 100_000))))

    def _half_closed(self, wire: socket.socket) -> None:
        wire.sendall(self._head(50) + b"{")
        wire.shutdown(socket.SHUT_WR)

    def _never_reading(self, wire: socket.socket) -> None:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.setblocking(False)
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 200
        with suppress(BlockingIOError):
            for _ in range(20):
                wire.sendall(asked)

    def _oversized(self, wire: socket.socket) -> None:
        if self._dice.random() < 0.5:
            wire.sendall(self._head(10**12))
        else:
            wire.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nx: " + b"y" * 100_000)

    def _aborted(self, wire: socket.socket) -> None:
        """With whole requests under way."""
        body = b'{"age": 30, "job": "cook", "code": 1}'
        wire.sendall((self._head(len(body)) + body) * self._dice.choice((1, 20)))
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()

    def _idle(self, wire: socket.socket) -> None:
        pass

    def _pipelined(self, wire: socket.socket) -> None:
        body = b'{"age": 30, "job": "cook", "code": 1}'
        wire.settimeout(5)
        wire.sendall((self._head(len(body)) + body) * 100)
        wire.recv(100)


class Trouble:
    """Kills and new versions in turn, each when the server is whole again."""

    def __init__(
        self,
        server: ServedProcess,
        models: ServedModels,
        folder: Path,
        ledger: Ledger,
        over: threading.Event,
        until_s: float,
    ) -> None:
        self._server, self._models, self._folder, self._ledger, self._over = server, models, folder, ledger, over
        self.swaps = 0
        self._until_s = until_s
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        steps = [self._new_version, lambda: self._kill("executor"), lambda: self._kill("front"), self._new_version,
                 self._kill_while_loading]  # fmt: skip
        number = 0
        while not self._over.wait(_BUSY_S) and time.monotonic() < self._until_s:
            try:
                steps[number % len(steps)]()
            except (OSError, http.client.HTTPException, IndexError) as error:
                self._ledger.count("trouble without an answer", repr(error))
            number += 1

    def _kill(self, role: str) -> None:
        pid = self._server.of(role)[self._ledger.answers[f"killed: {role}"] % 2 - 1]  # the older and the newer in turn
        os.kill(pid, signal.SIGKILL)
        self._ledger.count(f"killed: {role}")

    def _new_version(self) -> None:
        """Versions count up; the answers are those of the packages in turn."""
        new = self._models.versions[(self.swaps + 1) % len(self._models.versions)]
        for file in new.iterdir():
            shutil.copyfile(file, self._folder / file.name)
        status, body = self._server.post("/v2/repository/models/table/load")
        if status == 200:
            self.swaps += 1
            self._ledger.count("new versions")
        else:
            self._ledger.count("new version refused", f"{status} {body[:300]!r}")

    def _kill_while_loading(self) -> None:
        killer = threading.Timer(0.3, lambda: self._kill("executor"))
        killer.start()
        try:
            status, body = self._server.post("/v2/repository/models/arrays/load")  # the new executor may be the one killed
            if status == 200:
                self._ledger.count("loaded during a kill")
            else:
                self._ledger.count("not loaded during a kill", f"{status} {body[:300]!r}")
        finally:
            killer.join()


class MemoryWatch:
    """Resident memory of each process, without what it shares with others."""

    def __init__(self, server: ServedProcess, over: threading.Event) -> None:
        self._server, self._over = server, over
        self.seen: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            for pid, role in self._server.roles().items():
                with suppress(psutil.Error):
                    size = psutil.Process(pid).memory_full_info().uss / 2**20
                    if size:  # one that has just ended has none
                        self.seen[pid, role].append((time.monotonic(), size))

    def growth(self) -> Mapping[str, float]:
        """Of the processes that lived longest, by role: MiB in half an hour, after the warm-up."""
        found: dict[str, float] = {}
        longest: dict[str, float] = {}
        for (_, role), points in self.seen.items():
            age_s = points[-1][0] - points[0][0]
            kept = [(at_s, size) for at_s, size in points if at_s - points[0][0] > _WARM_SHARE * age_s]
            if age_s > longest.get(role, 0.0) and len(kept) > 4:
                longest[role] = age_s
                at_s, sizes = np.array(kept).T
                found[role] = float(np.polyfit(at_s - at_s[0], sizes, 1)[0]) * 1800
        return found

    def last(self) -> dict[str, float]:
        by_age = sorted(self.seen.items(), key=lambda one: one[1][-1][0] - one[1][0][0])
        return {role: points[-1][1] for (_, role), points in by_age}  # the oldest of each role remains


def of_all_versions(models: ServedModels, most: int) -> ServedModels:
    """Versions of the table count on while its packages take turns; `arrays` gets new versions with the same answers."""
    made = []
    count = len(models.versions)
    for one in models.questions:
        if one.model == "table":
            right = {str(version): one.right[str((version - 1) % count + 1)] for version in range(1, most)}
        else:
            right = {str(version): one.right["1"] for version in range(1, most)}
        made.append(replace(one, right=right))
    return replace(models, questions=tuple(made))


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=150.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    quiet()
    minutes = 0.5 if asked.quick or asked.smoke else asked.minutes
    with tempfile.TemporaryDirectory(prefix="flatout-soak-") as place:
        folder = Path(place)
        models = of_all_versions(made_models(folder, versions=2), most=10_000)
        served = folder / "served"
        shutil.copytree(models.versions[0], served)
        server = ServedProcess(folder, {**models.packages, "table": served}, "--workers", "2")
        ledger, over = Ledger(), threading.Event()
        load = OpenLoop(server, models, asked.rate, ledger, over)
        bad = BadClients(server, ledger, over, asked.seed)
        calm_s = time.monotonic() + 60 * minutes * _TROUBLE_SHARE
        trouble, memory = Trouble(server, models, served, ledger, over, calm_s), MemoryWatch(server, over)
        failed: list[str] = []
        threading.excepthook = lambda given: failed.append(repr(given.exc_value))
        threads = [*load.clients, bad.thread, trouble.thread, memory.thread]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + 60 * minutes
        while time.monotonic() < until_s and server.is_running():
            time.sleep(min(30.0, max(0.1, until_s - time.monotonic())))
            print(f"{(until_s - time.monotonic()) / 60:.1f} min left: {dict(ledger.answers)}", file=sys.stderr, flush=True)
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)
        roles = server.roles()
        code = server.stop()
        left = sum(psutil.pid_exists(pid) for pid in roles)
        tracebacks = server.said().count("Traceback (most recent call last)")
        if tracebacks:
            print(server.said()[-6000:], file=sys.stderr)
    for line in [*failed, *ledger.problems[:30]]:
        print(line, file=sys.stderr)
    counts, growth = ledger.answers, memory.growth()
    report = Report("serving_soak", __doc__ or "", torch.device("cuda" if torch.cuda.is_available() else "cpu"),
                    {"minutes": minutes, "rate": asked.rate, "seed": asked.seed, "counts": dict(counts), "exit_code": code,
                     "uss_mib": memory.last(), "growth_mib_in_30_min": growth})  # fmt: skip
    report.arm("right answers", "answers", [counts["right"]])
    report.arm("p50 from when it was due", "ms", [1e3 * float(np.quantile(ledger.late_s, 0.5))])
    report.arm("p99 from when it was due", "ms", [1e3 * float(np.quantile(ledger.late_s, 0.99))])
    due = int(60 * minutes * asked.rate)
    report.bars.append(
        Bar("share of the requests that were due, sent and judged", (counts["right"] + counts["wrong"]) / due, 0.95)
    )
    report.bars.append(Bar("threads of the benchmark that failed", len(failed), 0, at_least=False))
    report.bars.append(Bar("wrong answers", counts["wrong"], 0, at_least=False))
    report.bars.append(Bar("lost requests", counts["lost"], 0, at_least=False))
    report.bars.append(Bar("versions that were refused", counts["new version refused"], 0, at_least=False))
    report.bars.append(Bar("tracebacks", tracebacks, 0, at_least=False))
    report.bars.append(Bar("processes left behind", left + (code != 143), 0, at_least=False))
    for role, grown in growth.items():
        if minutes >= 10:  # what a shorter run shows is warm-up
            share = grown / max(_LEAST_MIB, memory.last()[role])
            report.bars.append(Bar(f"growth of the {role} in 30 min, share", share, _MOST_GROWTH, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
