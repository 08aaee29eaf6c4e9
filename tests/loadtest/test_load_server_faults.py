"""Servers that misbehave, on real sockets: each fault is counted for what it is, and none hangs or ends the run."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_servers import OK, Asked, Line, after_the_first, polite, serving

Measured = Callable[..., Any]
Command = Callable[..., tuple[int, str, str]]
SHORT = ("--rate", "400/s", "--for", "0.15 s", "--arrivals", "constant", "--warm-up", "0.025 s")
REQUESTS = 50  # of SHORT, without the warm-up


async def closes(asked: Asked, line: Line) -> None:
    """HTTP/1.0 without a length: the body ends with the connection."""
    line.say(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
    line.close()


async def closes_politely(asked: Asked, line: Line) -> None:
    line.say(OK.replace(b"Content-Length", b"Connection: close\r\nContent-Length"))
    line.close()


async def chunked(asked: Asked, line: Line) -> None:
    line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    await asyncio.sleep(0.005)
    line.say(b"6\r\n world\r\n0\r\n\r\n")


async def piecemeal(asked: Asked, line: Line) -> None:
    for place in range(0, len(OK), 9):
        line.say(OK[place : place + 9])
        await asyncio.sleep(0.001)


async def trickles(asked: Asked, line: Line) -> None:
    """A byte now and then, without end: a connection that lives is not an answer that comes."""
    line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
    while not line.writer.is_closing():
        line.say(b".")
        await asyncio.sleep(0.02)


async def continues(asked: Asked, line: Line) -> None:
    line.say(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)


@pytest.mark.parametrize("behaviour", [closes, closes_politely, chunked, piecemeal, continues], ids=lambda one: one.__name__)
def test_unusual_answers_are_good_answers(behaviour: Any, measured: Measured) -> None:
    with serving(behaviour) as server:
        found = measured(f"{server.url}/x", *SHORT)
    assert found["statuses"] == {"200": REQUESTS} and found["errors"] == {} and found["good"] == REQUESTS


def test_a_body_that_is_cut_off_is_no_answer(measured: Measured) -> None:
    async def cut(asked: Asked, line: Line) -> None:
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nonly this")
        line.close()

    with serving(after_the_first(cut)) as server:
        found = measured(f"{server.url}/x", *SHORT)
    assert found["errors"] == {"reset": REQUESTS} and found["good"] == 0


def test_refusals_by_admission_are_counted_apart_and_not_waited_for(measured: Measured) -> None:
    async def every_other(asked: Asked, line: Line) -> None:
        refusal = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"
        line.say(refusal if asked.number % 2 else OK)

    with serving(every_other) as server:
        found = measured(f"{server.url}/x", *SHORT)
    # the server counts requests that only try the connection too, so not exactly every other one is counted here
    assert found["admission_refused"] == found["statuses"]["503"] > REQUESTS // 3
    assert found["requests"] == REQUESTS == found["admission_refused"] + found["good"]


def test_a_server_that_stops_answering_is_timed_out(measured: Measured) -> None:
    async def silent(asked: Asked, line: Line) -> None:
        await asyncio.sleep(60)

    with serving(after_the_first(silent)) as server:
        found = measured(f"{server.url}/x", *SHORT, "--timeout", "0.2 s")
    assert found["errors"] == {"timed_out": REQUESTS}
    assert found["latency_ms"]["p99"] is None, "no good answer has no latency"


def test_an_answer_that_trickles_is_timed_out(measured: Measured) -> None:
    with serving(after_the_first(trickles)) as server:
        found = measured(f"{server.url}/x", *SHORT, "--timeout", "0.2 s")
    assert found["errors"] == {"timed_out": REQUESTS}


def test_requests_without_a_connection_time_out_too(measured: Measured) -> None:
    async def silent(asked: Asked, line: Line) -> None:
        await asyncio.sleep(60)

    with serving(after_the_first(silent)) as server:
        found = measured(f"{server.url}/x", *SHORT, "--timeout", "0.2 s", "--connections", 2)
    assert found["errors"] == {"timed_out": REQUESTS}
    assert found["generator"]["waited_for_connections"] and found["generator"]["connections"] <= 2


@pytest.mark.parametrize(
    "said", [b"220 smtp.example ready\r\n", bytes(range(256)), b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
def test_garbage_is_counted_as_such(said: bytes, measured: Measured) -> None:
    async def garbage(asked: Asked, line: Line) -> None:
        line.say(said)

    with serving(after_the_first(garbage)) as server:
        found = measured(f"{server.url}/x", *SHORT)
    assert found["errors"] == {"not_http": REQUESTS}


async def resets_every_fifth(asked: Asked, line: Line) -> None:
    line.reset() if asked.number % 5 == 4 else line.say(OK)


def test_resets_are_counted(measured: Measured) -> None:
    with serving(resets_every_fifth) as server:
        found = measured(f"{server.url}/x", *SHORT)
    assert found["errors"].keys() == {"reset"} and 9 <= found["errors"]["reset"] <= 11
    assert found["good"] + found["errors"]["reset"] == REQUESTS and found["retried"] == 0


def test_a_reset_request_is_asked_once_more_on_a_new_connection(measured: Measured) -> None:
    used: set[asyncio.StreamWriter] = set()

    async def resets_used_connections(asked: Asked, line: Line) -> None:
        """The first request of a connection is answered, the second is not."""
        line.reset() if line.writer in used else line.say(OK)
        used.add(line.writer)

    with serving(resets_used_connections) as server:
        found = measured(f"{server.url}/x", *SHORT, "--retry")
        assert server.connections > found["retried"] > 0
    assert found["errors"] == {} and found["good"] == REQUESTS


def test_a_retry_is_not_retried(measured: Measured) -> None:
    async def resets(asked: Asked, line: Line) -> None:
        line.reset()

    with serving(after_the_first(resets)) as server:
        found = measured(f"{server.url}/x", *SHORT, "--retry")
    assert found["errors"] == {"reset": REQUESTS} and found["retried"] == REQUESTS


def test_a_server_that_dies_on_the_way(measured: Measured) -> None:
    with serving(polite) as server:
        timer = threading.Timer(0.8, server.stop)
        timer.start()
        found = measured(f"{server.url}/x", "--rate", "100/s", "--for", "1.4 s")
        timer.join()
    assert found["good"] > 0 and found["errors"]["refused"] > 0
    assert found["good"] + sum(found["errors"].values()) == found["requests"]


# ---- said at once, before a run ----


def test_a_server_that_is_down(command: Command) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        code, out, err = command(f"http://127.0.0.1:{held.getsockname()[1]}", "--rate", "10/s")
    assert code == 1 and out == "" and "can't connect" in err and "Traceback" not in err


def test_an_unknown_host(command: Command) -> None:
    code, _, err = command("http://no-such-host.invalid", "--rate", "10/s", "--row", "{}")
    assert code == 1 and "no-such-host.invalid" in err


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (b"220 smtp.example ready\r\n", "not HTTP"),
        (b"", "closed the connection"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nno such", "404"),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "--header"),
    ],
)
def test_a_first_answer_that_is_of_no_use(said: bytes, named: str, command: Command) -> None:
    async def useless(asked: Asked, line: Line) -> None:
        line.say(said)
        line.close()

    with serving(useless) as server:
        code, out, err = command(f"{server.url}/x", "--rate", "10/s")
        assert len(server.asked) == 1
    assert code == 1 and out == "" and named in err


def test_no_first_answer(command: Command) -> None:
    async def silent(asked: Asked, line: Line) -> None:
        await asyncio.sleep(60)

    with serving(silent) as server:
        code, _, err = command(f"{server.url}/x", "--rate", "10/s", "--timeout", "0.2 s")
    assert code == 1 and "0.2 s" in err


# ---- other ways to reach a server ----


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    made = [folder / "certificate.pem", folder / "key.pem"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    how = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    subprocess.run([*how, "-out", made[0], "-keyout", made[1], *subject], check=True, capture_output=True)
    return made[0], made[1]


def test_https(certificate: tuple[Path, Path], command: Command, measured: Measured) -> None:
    with serving(polite, certificate=certificate) as server:
        url = f"https://localhost:{server.port}/x"
        code, _, err = command(url, *SHORT)
        assert code == 1 and "--insecure" in err
        found = measured(url, *SHORT, "--insecure")
    assert found["statuses"] == {"200": REQUESTS}


def test_https_at_a_server_without_tls(command: Command) -> None:
    with serving(polite) as server:
        code, _, err = command(f"https://127.0.0.1:{server.port}/x", *SHORT, "--timeout", "1 s")
    assert code == 1 and "Traceback" not in err


def test_ipv6(measured: Measured) -> None:
    with socket.socket(socket.AF_INET6) as held:
        try:
            held.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    with serving(polite, host="::1") as server:
        found = measured(f"http://[::1]:{server.port}/x", *SHORT)
        assert server.asked[-1].headers["host"] == f"[::1]:{server.port}"
    assert found["statuses"] == {"200": REQUESTS}
