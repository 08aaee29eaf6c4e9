"""`flatout load` counts what wrk counts: within 5% below its limit, which is 15,000 requests/s a core or more."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from evidence import NEEDS_GPU, Bar, Report, options, take_turns

CONNECTIONS = 8
ANSWER_S = 0.004  # by a timer: neither side nor the server comes near its limit, and the rate is the connections' alone
LIMITED_RATE = 15_000
OPEN_RATES = (500, 5_000)
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{"answer":1}'


def serve(port: int) -> None:
    """/at-once answers at once, /wait after ANSWER_S."""
    import httptools
    import uvloop

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport
            self.parser = httptools.HttpRequestParser(self)
            self.waits = False

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_url(self, url: bytes) -> None:
            self.waits = url == b"/wait"

        def on_message_complete(self) -> None:
            if self.waits:
                asyncio.get_running_loop().call_later(ANSWER_S, self.answer)
            else:
                self.transport.write(ANSWER)

        def answer(self) -> None:
            if not self.transport.is_closing():
                self.transport.write(ANSWER)

    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(forever())


@contextmanager
def server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    try:
        for _ in range(200):
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise RuntimeError("the server of this benchmark has ended")
            subprocess.run(["sleep", "0.05"], check=True)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def by_wrk(url: str, seconds: int) -> float:
    """Answers per second. Its latencies are not compared: where an answer was slow it adds estimated ones (`stats_correct`)."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    if rate is None:
        raise RuntimeError(f"wrk says something else than expected: {said}")
    return float(rate[1])


def by_flatout(url: str, seconds: int, *how: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "flatout", "load", url, "--for", f"{seconds} s", "--json", *how]
    said: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return said


def closed_by_flatout(busy: list[float], url: str, seconds: int) -> float:
    """Answers per second. `busy` gets the mean number of requests on their way, which is the rate times the mean latency."""
    said = by_flatout(url, seconds, "--closed", str(CONNECTIONS))
    if said["generator"]["was_the_limit"]:
        print(f"the generator was the limit: {said['generator']['why']}", file=sys.stderr)
    busy.append(said["achieved_rate"] * said["latency_ms"]["mean"] / 1e3)
    return float(said["achieved_rate"])


def compare_closed(report: Report, url: str, seconds: int, asked: argparse.Namespace) -> None:
    busy: list[float] = []
    arms = {
        "wrk": partial(by_wrk, f"{url}/wait", seconds),
        "flatout load": partial(closed_by_flatout, busy, f"{url}/wait", seconds),
    }
    for name, values in take_turns(arms, asked.repeats, asked.within).items():
        report.arm(f"{name}, closed loop", "answers/s", values)
    report.arm("requests on their way, from rate and mean latency", "requests", busy)
    both = [report.arms[f"{name}, closed loop"]["median"] for name in arms]
    report.bars.append(Bar("difference of the rates of both", abs(both[1] / both[0] - 1), 0.05, at_least=False))
    on_their_way = report.arms["requests on their way, from rate and mean latency"]["median"]
    claim = f"mean latency, against {CONNECTIONS} connections that are always busy"
    report.bars.append(Bar(claim, abs(on_their_way / CONNECTIONS - 1), 0.05, at_least=False))


def measure_open(report: Report, url: str, seconds: int, asked: argparse.Namespace) -> None:
    """Open loop: does the server see the rate that was asked for, and how late is a send?"""
    lags_ms: dict[int, list[float]] = {rate: [] for rate in (*OPEN_RATES, LIMITED_RATE)}

    def kept(rate: int) -> float:
        said = by_flatout(f"{url}/at-once", seconds, "--rate", f"{rate}/s", "--arrivals", "constant", "--processes", "1")
        lags_ms[rate].append(said["generator"]["lag_ms"]["p50"])
        return float(said["achieved_rate"]) / rate

    arms = {f"share of {rate:,}/s that was answered": partial(kept, rate) for rate in lags_ms}
    for (name, values), (rate, lags) in zip(
        take_turns(arms, asked.repeats, asked.within).items(), lags_ms.items(), strict=True
    ):
        report.arm(name, "of the rate", values)
        report.arm(f"median lag at {rate:,}/s", "ms", lags)
        report.bar(f"{rate:,}/s held by one process", name, 0.95)


def most_of_one_core(report: Report, url: str, seconds: int, asked: argparse.Namespace) -> None:
    def rate_at_full_core() -> float:
        said = by_flatout(f"{url}/at-once", seconds, "--closed", "16", "--processes", "1")
        return float(said["achieved_rate"]) / max(0.01, float(said["generator"]["cpu_share"]))

    values = take_turns({"requests/s a core": rate_at_full_core}, asked.repeats, asked.within)["requests/s a core"]
    report.arm("requests/s a core of CPU time, closed loop of 16", "requests/s", values)
    report.bar("requests/s a core", "requests/s a core of CPU time, closed loop of 16", LIMITED_RATE)


def main() -> int:
    parser = options(__doc__, repeats=5)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return 0
    if shutil.which("wrk") is None:
        print("this benchmark needs wrk, which is not installed (Debian: apt install wrk)", file=sys.stderr)
        return NEEDS_GPU
    if asked.quick or asked.smoke:
        asked.repeats = 2
    seconds = 2 if asked.quick or asked.smoke else 8
    conditions = {"connections": CONNECTIONS, "answer_after_ms": 1e3 * ANSWER_S, "seconds": seconds, "wrk": _wrk_version()}
    report = Report(Path(__file__).stem, __doc__ or "", torch.device("cpu"), conditions)
    with server() as url:
        compare_closed(report, url, seconds, asked)
        measure_open(report, url, seconds, asked)
        most_of_one_core(report, url, seconds, asked)
    return report.finish(asked)


def _wrk_version() -> str:
    said = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False)
    return (said.stdout + said.stderr).splitlines()[0].strip()


if __name__ == "__main__":
    raise SystemExit(main())
