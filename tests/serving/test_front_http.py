"""HTTP on real sockets: what well-behaved clients do, and what others do."""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from front_server import Answer, Front, Reader, front, request, served
from in_process import InProcessAsking

from flatout.serving.front.hooks import RowHooks
from flatout.serving.front.limits import Limits

ROW = {"age": 39, "code": 1, "job": "clerk", "born": "1990-01-31"}
QUICK = Limits(
    header_bytes=2048, body_bytes=20_000, header_s=0.3, body_grace_s=0.3, body_bytes_per_s=100, body_s=2.0, idle_s=0.5,
    unread_s=0.4, connections=20, requests_in_flight=4, hook_s=0.3, sweep_s=0.05,
)  # fmt: skip


@pytest.fixture(scope="module")
def table(packaged: Callable[[str], Any]) -> Any:
    return packaged("classes_table")


@pytest.fixture(scope="module")
def shared(table: Any) -> Iterator[Front]:
    with front(served(table.path), limits=QUICK) as running:
        yield running


@pytest.fixture
def row(table: Any) -> dict[str, Any]:
    return {name: _plain(column[0]) for name, column in table.rows(1).items()}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else str(value)


def test_one_row_is_answered(shared: Front, row: dict[str, Any]) -> None:
    answer = shared.post("/predict", row)
    assert answer.status == 200 and set(answer.json) == {"prediction", "class", "probability", "probabilities"}
    assert answer.headers["x-flatout-batch"] == "1" and answer.headers["x-flatout-reason"] == "idle"
    assert float(answer.headers["x-flatout-queue-ms"]) == 1.0 and answer.headers["x-flatout-version"] == "1"
    assert float(answer.headers["x-flatout-compute-ms"]) > 0 and "date" in answer.headers


def test_requests_on_one_connection_and_pieces_of_one(shared: Front) -> None:
    with shared.connect() as wire:
        reader = Reader(wire)
        for _ in range(3):
            wire.sendall(request("GET", "/v2/health/live", None, {}))
            assert reader.answer().status == 200
        for byte in request("GET", "/v2", None, {}):
            wire.sendall(bytes([byte]))
        assert reader.answer().json["name"] == "flatout"


def test_pipelined_requests_are_answered_in_order(table: Any, row: dict[str, Any]) -> None:
    asking = InProcessAsking(delays_s=[0.2, 0.1, 0.0, 0.05, 0.0, 0.0, 0.0])
    with front(served(table.path), asking=asking, limits=QUICK) as running:  # at most 4 at a time
        one = b"".join(
            request("POST", "/v2/models/m/infer", _oip(row, str(place)), {}) + request("GET", f"/none/{place}", None, {})
            for place in range(7)
        )
        answers = running.ask(one, answers=14)
        assert [answer.json["id"] for answer in answers[::2]] == [str(place) for place in range(7)]
        assert [f"/none/{place}" in answer.error for place, answer in enumerate(answers[1::2])] == [True] * 7
        assert running.app.in_flight == 0 and all(room.released == 1 for room in asking.rooms)


def _oip(row: dict[str, Any], identity: str) -> bytes:
    inputs = [
        {"name": name, "shape": [1], "datatype": "BYTES" if isinstance(value, str) else "FP64", "data": [value]}
        for name, value in row.items()
    ]
    return json.dumps({"id": identity, "inputs": inputs}).encode()


def test_the_same_head_in_every_division(shared: Front, row: dict[str, Any]) -> None:
    """A head that came before is not parsed again: the answers stay those of its own body."""
    at = "/v2/models/m/infer"
    bodies = [_oip(row, identity) for identity in ("aa", "bb", "cc", "dd")]
    sent = b"".join(request("POST", at, body, {}) for body in bodies)
    size = len(sent) // 4
    ends = [[size * place for place in (1, 2, 3, 4)], [4 * size], [size - 5, size + 7, 3 * size - 1, 4 * size]]
    ends += [[cut, size, size + cut, 3 * size, 4 * size] for cut in (5, 40, size - len(bodies[0]), size - 1)]
    ends.append([*range(7, 4 * size, 7), 4 * size])
    for division in ends:
        with shared.connect() as wire:
            reader = Reader(wire)
            for start, end in zip([0, *division], division, strict=False):
                wire.sendall(sent[start:end])
                time.sleep(0.001)
            assert [reader.answer().json["id"] for _ in bodies] == ["aa", "bb", "cc", "dd"]


def test_http_1_0_and_connection_close(shared: Front) -> None:
    with shared.connect() as wire:
        wire.sendall(b"GET /v2 HTTP/1.0\r\n\r\n")
        reader = Reader(wire)
        assert reader.answer().headers["connection"] == "close" and reader.is_over()
    with shared.connect() as wire:
        reader = Reader(wire)
        for _ in range(2):
            wire.sendall(b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert reader.answer().headers["connection"] == "keep-alive"
        wire.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert reader.answer().headers["connection"] == "close" and reader.is_over()


def test_chunked_bodies(shared: Front, row: dict[str, Any]) -> None:
    body = json.dumps(row).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    for size in (1, 7, 1000):
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        chunks = b"".join(b"%x;note=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        (answer,) = shared.ask(head + chunks + b"0\r\nSome-Trailer: x\r\nHost: b\r\n\r\n")
        assert answer.status == 200


def test_expect_continue(shared: Front, row: dict[str, Any]) -> None:
    body = json.dumps(row).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
    with shared.connect() as wire:
        reader = Reader(wire)
        wire.sendall(head % len(body))
        assert reader.answer().status == 100
        wire.sendall(body)
        assert reader.answer().status == 200
    assert shared.ask(head % 10_000_000)[0].status == 413  # and not 100
    assert shared.ask(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: tea\r\n\r\n")[0].status == 417


def test_head_options_and_other_methods(shared: Front) -> None:
    with shared.connect() as wire:
        wire.sendall(b"HEAD /v2 HTTP/1.1\r\nHost: a\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        reader = Reader(wire, head_only=True)
        answer = reader.answer()
        assert answer.status == 200 and int(answer.headers["content-length"]) > 0 and reader.answer().status == 200
    for method, path, allowed in (("DELETE", "/v2", "GET, HEAD"), ("GET", "/predict", "POST"), ("PUT", "/predict", "POST"),
                                  ("GET", "/v2/repository/models/m/load", "POST")):  # fmt: skip
        answer = shared.post(path, b"", method=method)
        assert answer.status == 405 and answer.headers["allow"] == allowed and method in answer.error
    assert shared.post("/predict", b"", method="OPTIONS").headers["allow"] == "POST"


def test_unknown_paths_name_what_is_near(shared: Front) -> None:
    assert "/openapi.json" in shared.get("/nothing").error
    assert "'m'" in shared.get("/v2/models/mm").error
    answer = shared.get("/v2/models/m/versions/7")
    assert answer.status == 404 and "'7'" in answer.error and "1" in answer.error


@pytest.mark.parametrize("url", ["/v2/", "/v2?x=1", "http://test/v2", "/%76%32", "/v2/health/live?a=b"])
def test_other_spellings_of_a_path(shared: Front, url: str) -> None:
    assert shared.get(url).status == 200


REFUSED = {
    "both lengths": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"),
    "other order": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0"),
    "two lengths": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "list of lengths": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 3\r\n\r\n{}"),
    "a length below 0": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: -2\r\n\r\n{}"),
    "a length with a sign": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\n{}"),
    "a huge length": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n{}"),
    "chunked twice": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    "bad chunk": (400, b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "space before colon": (400, b"GET /v2 HTTP/1.1\r\nHost : a\r\n\r\n"),
    "folded header": (400, b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\x00\r\n\r\n"),
    "zero byte": (400, b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n"),
    "bad name": (400, b"GET /v2 HTTP/1.1\r\nHost: a\r\nX\x01: a\r\n\r\n"),
    "no host": (400, b"GET /v2 HTTP/1.1\r\n\r\n"),
    "two hosts": (400, b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    "no HTTP": (400, b"hello there\r\n\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)),
    "HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "bare line feeds": (400, b"GET /v2 HTTP/1.1\nHost: a\n\n"),
    "large header": (431, b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 3000 + b"\r\n\r\n"),
    "endless header": (431, b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 3000),
    "many headers": (431, b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(400)) + b"\r\n"),
    "long path": (431, b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "large body": (413, b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 30000\r\n\r\n"),
    "large chunks": (413, b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7530\r\n" + b"a" * 30000),
    "other coding": (501, b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_and_closed(shared: Front, name: str) -> None:
    status, sent = REFUSED[name]
    with shared.connect() as wire:
        wire.sendall(sent)
        reader = Reader(wire)
        answer = reader.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close") and answer.error
        assert reader.is_over()


def test_a_smuggled_request_is_not_answered(shared: Front) -> None:
    sent = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with shared.connect() as wire:
        wire.sendall(sent + request("GET", "/v2", None, {}))
        reader = Reader(wire)
        assert reader.answer().status == 400 and reader.is_over()


def test_a_refused_sender_gets_its_answer_while_it_sends(shared: Front) -> None:
    """A plain close would reset the connection, and the answer with it."""
    with shared.connect() as wire:
        wire.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n\r\n")
        for _ in range(50):
            wire.sendall(bytes(100_000))
        assert Reader(wire).answer().status == 413


@pytest.mark.parametrize("sent", [b"GET /v2 HT", b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{",
                                  b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"],
                         ids=["headers", "body", "chunks"])  # fmt: skip
def test_slow_clients_get_408(shared: Front, sent: bytes) -> None:
    with shared.connect() as wire:
        wire.sendall(sent)
        reader = Reader(wire)
        answer = reader.answer()
        assert answer.status == 408 and answer.error and reader.is_over()


def test_a_trickle_of_bytes_is_too_slow(shared: Front) -> None:
    with shared.connect() as wire:
        wire.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n")
        for _ in range(8):  # more than 1 byte a second, and less than the limit
            wire.sendall(b" ")
            time.sleep(0.05)
        assert "bytes/s" in Reader(wire).answer().error


def test_idle_connections_are_closed(shared: Front) -> None:
    with shared.connect() as silent, shared.connect() as used:
        used.sendall(request("GET", "/v2", None, {}))
        reader = Reader(used)
        assert reader.answer().status == 200
        assert reader.is_over() and Reader(silent).is_over()


def test_too_many_connections(shared: Front) -> None:
    _wait_for(lambda: shared.app.connections == 0)
    wires = [shared.connect() for _ in range(QUICK.connections)]
    _wait_for(lambda: shared.app.connections == QUICK.connections)
    with shared.connect() as last:
        answer = Reader(last).answer()
        assert answer.status == 503 and answer.headers["retry-after"] == "1" and "20" in answer.error
    for wire in wires:
        wire.close()
    _wait_for(lambda: shared.app.connections == 0)
    assert shared.get("/v2").status == 200


def _wait_for(holds: Callable[[], bool]) -> None:
    for _ in range(400):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to hold")


def test_a_half_closed_client_gets_its_answers(table: Any, row: dict[str, Any]) -> None:
    with front(served(table.path), asking=InProcessAsking(delays_s=[0.1, 0.0])) as running, running.connect() as wire:
        wire.sendall(request("POST", "/v2/models/m/infer", _oip(row, "a"), {}) * 2)
        wire.shutdown(socket.SHUT_WR)
        reader = Reader(wire)
        assert [reader.answer().status, reader.answer().status] == [200, 200] and reader.is_over()


def test_clients_that_vanish_leave_nothing_behind(table: Any, row: dict[str, Any]) -> None:
    asking = InProcessAsking(delays_s=[0.1] * 10)
    with front(served(table.path), asking=asking) as running:
        for place in range(10):
            wire = running.connect()
            wire.sendall(request("POST", "/v2/models/m/infer", _oip(row, "a"), {}) + b"GET /v2 HT")
            if place % 2:  # a reset instead of an end
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            _wait_for(lambda: len(asking.rooms) == place + 1)  # noqa: B023
            wire.close()
        _wait_for(lambda: running.app.in_flight == 0 and running.app.connections == 0)
        assert [room.released for room in asking.rooms] == [1] * 10
        assert running.get("/v2").status == 200


def test_a_client_that_never_reads_is_disconnected(table: Any) -> None:
    page = b"a" * 1_000_000
    limits = Limits(unread_s=0.3, sweep_s=0.05, requests_in_flight=4)
    with front(served(table.path), limits=limits, extra_routes={"/large": lambda: (200, "text/plain", page)}) as running:
        with running.connect() as wire:
            wire.settimeout(0.2)
            try:
                for _ in range(200):
                    wire.sendall(request("GET", "/large", None, {}) * 10)
            except (TimeoutError, ConnectionError):
                pass
            answered = len(running.watched.requests)
            assert answered < 100  # it stopped to read more requests
            _wait_for(lambda: running.app.connections == 0)
        assert running.get("/large").body == page


def test_large_bodies_of_all_connections_have_a_limit(table: Any) -> None:
    limits = Limits(body_bytes=4 << 20, held_bytes=7 << 20)
    with front(served(table.path), limits=limits) as running:
        head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n"
        wires = [running.connect() for _ in range(3)]
        for wire in wires:
            wire.sendall(head + b" " * 1000)
            time.sleep(0.05)
        answer = Reader(wires[2]).answer()
        assert answer.status == 503 and answer.headers["retry-after"] == "1" and "6,000,000" in answer.error
        wires[0].sendall(b" " * (3_000_000 - 1000))
        assert Reader(wires[0]).answer().status == 400  # an empty JSON, and its memory is free
        wires[1].close()
        chunk = b"1e8480\r\n" + b" " * 2_000_000 + b"\r\n"
        chunked = b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        for _ in range(3):
            assert running.ask(head + b" " * 3_000_000)[0].status == 400
            assert running.ask(chunked + chunk + b"0\r\n\r\n")[0].status == 400
        for wire in wires:
            wire.close()


def test_the_token(table: Any, row: dict[str, Any]) -> None:
    with front(served(table.path), token="secret") as running:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}, {"Authorization": "Bearer"}):
            answer = running.post("/predict", row, given)
            assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer" and "secret" not in answer.error
        assert running.post("/predict", row, {"Authorization": "Bearer secret"}).status == 200
        assert running.get("/v2/health/live").status == running.get("/v2/health/ready").status == 200
        assert running.get("/v2/models/m").status == 401
        assert running.get("/v2/models/m", {"authorization": "bearer secret"}).status == 200


def test_tls(table: Any, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context(cafile=str(certificate))
    server.load_cert_chain(certificate, key)
    with front(served(table.path), tls=server, limits=QUICK) as running:
        with client.wrap_socket(running.connect(), server_hostname="localhost") as wire:
            wire.sendall(request("GET", "/v2", None, {}) * 2)
            reader = Reader(wire)
            assert [reader.answer().status, reader.answer().status] == [200, 200]
        with client.wrap_socket(running.connect(), server_hostname="localhost") as wire:
            wire.sendall(REFUSED["large body"][1])
            assert Reader(wire).answer().status == 413


def test_swapped_models_and_draining(packaged: Callable[[str], Any], table: Any, row: dict[str, Any]) -> None:
    asking = InProcessAsking(delays_s=[0.3])
    one, two = served(table.path), served(packaged("binary_table").path, "m", "2", 1)
    with front(one, asking=asking) as running, running.connect() as wire:
        wire.sendall(request("POST", "/v2/models/m/infer", _oip(row, "a"), {}))
        _wait_for(lambda: running.app.in_flight == 1)
        running.do(lambda: running.app.swap({"m": {"1": one, "2": two}}))
        assert running.get("/v2/models/m").json["versions"] == ["1", "2"]
        assert running.post("/predict", row).headers["x-flatout-version"] == "2"
        running.do(lambda: running.app.swap({"m": {"2": two}}))
        assert running.get("/v2/models/m/versions/1").status == 404
        assert Reader(wire).answer().headers["x-flatout-version"] == "1"
        running.do(lambda: setattr(running.app, "draining", True))
        answer = running.post("/predict", row)
        assert answer.status == 200 and answer.headers["connection"] == "close"


def test_not_ready(table: Any) -> None:
    with front(served(table.path)) as running:
        running.app.ready = False
        assert running.get("/v2/health/ready").status == running.get("/v2/models/m/ready").status == 503
        assert running.get("/v2/health/live").status == 200


def test_extra_pages_and_their_errors(table: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> tuple[int, str, bytes]:
        raise KeyError("a secret of the server\nand more")

    pages = {"/": lambda: (200, "text/html", b"<p>"), "/metrics": broken}
    with front(served(table.path), extra_routes=pages) as running, caplog.at_level(logging.CRITICAL, "flatout.serving"):
        answer = running.get("/")
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/html", b"<p>")
        assert running.get("/metrics").status == 500 and "KeyError" in running.get("/metrics").error


def test_times_and_counts_are_told(table: Any, row: dict[str, Any]) -> None:
    with front(served(table.path)) as running:
        running.post("/predict", row)
        running.post("/predict", b"{")
        _wait_for(lambda: len(running.watched.requests) == 2)
        good, bad = running.watched.requests
        assert (good.status_code, good.rows, good.model is not None, good.timing.batch_rows) == (200, 1, True, 1)
        assert good.spent.decode_s > 0 and good.spent.compute_s > 0 and good.spent.encode_s > 0
        assert good.spent.total_s >= good.spent.parse_s + good.spent.decode_s + good.spent.compute_s + good.spent.encode_s
        assert (bad.status_code, bad.rows, bad.spent.compute_s) == (400, 0, 0.0)


def test_hooks(table: Any, row: dict[str, Any]) -> None:
    seen: list[Any] = []

    def before(rows: Any, headers: Any) -> Any:
        seen.append((rows, headers))
        return {**rows, "age": [20 for _ in rows["age"]]}

    def after(answers: Any, headers: Any) -> Any:
        return {"twice": answers["probability"] * 2, "class": [name.upper() for name in answers["class"]]}

    with front(served(table.path)) as plain, front(served(table.path), hooks=RowHooks(before, after)) as running:
        wanted = plain.post("/predict", {**row, "age": 20}).json
        answer = running.post("/predict", row, {"X-Mine": "7"})
        assert answer.json["class"] == wanted["class"].upper()
        assert answer.json["twice"] == pytest.approx(2 * wanted["probability"])
        assert seen[0][0]["age"] == [row["age"]] and seen[0][1]["x-mine"] == "7"
        found = running.post("/v2/models/m/infer", _oip(row, "a")).json["outputs"]
        assert {output["name"]: output["datatype"] for output in found} == {"twice": "FP32", "class": "BYTES"}
        assert running.watched.requests[0].spent.hook_s > 0


def test_hooks_that_fail_or_hang(table: Any, row: dict[str, Any]) -> None:
    def hang(rows: Any, headers: Any) -> Any:
        time.sleep(1.0)

    def fail(rows: Any, headers: Any) -> Any:
        raise ValueError("no such customer\nsecond line")

    def few(answers: Any, headers: Any) -> Any:
        return {"class": []}

    with front(served(table.path), hooks=RowHooks(before=fail), limits=QUICK) as running:
        answer = running.post("/predict", row)
        assert answer.status == 500 and "before" in answer.error and "ValueError: no such customer" in answer.error
        assert "second line" not in answer.error
    for hooks in (RowHooks(after=few), RowHooks(before=lambda rows, headers: None), RowHooks(after=lambda rows, headers: 3)):
        with front(served(table.path), hooks=hooks, limits=QUICK) as running:
            answer = running.post("/predict", row)
            assert answer.status == 500 and ("before" if hooks.before else "after") in answer.error
    with front(served(table.path), hooks=RowHooks(before=hang), limits=QUICK) as running:
        wires = [running.connect() for _ in range(8)]
        for wire in wires:  # more than there are threads
            wire.sendall(request("POST", "/predict", os.linesep.encode() + str(row).replace("'", '"').encode(), {}))
        assert running.get("/v2").status == 200
        answers: list[Answer] = [Reader(wire).answer() for wire in wires]
        assert {answer.status for answer in answers} == {504} and "before" in answers[0].error
        for wire in wires:
            wire.close()
