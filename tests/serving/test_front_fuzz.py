"""Requests that are broken at random: each gets JSON or a closed connection, and the server goes on."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
from front_server import EndlessReader, front, request, served
from in_process import InProcessAsking

from flatout.serving.front.limits import Limits

ROUNDS = 400
NUMBERS = np.arange(5, dtype=np.float32)


def whole_requests(row: dict[str, Any]) -> list[bytes]:
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [1, 5], "parameters": {"binary_data_size": 20}},
        {"name": "kind", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    in_json = [{"name": "x", "datatype": "FP32", "shape": [1, 5], "data": NUMBERS.tolist()},
               {"name": "kind", "datatype": "INT64", "shape": [1], "data": [1]}]  # fmt: skip
    chunked = b"POST /models/table/predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[1,2]\r\n0\r\n\r\n"
    return [
        request("POST", "/v2/models/several/infer", head + NUMBERS.tobytes() + bytes(8),
                {"Inference-Header-Content-Length": str(len(head))}),
        request("POST", "/v2/models/several/infer", json.dumps({"inputs": in_json}).encode(), {}),
        request("POST", "/models/table/predict", json.dumps(row).encode(), {"Content-Type": "application/json"}),
        request("POST", "/models/table/predict", b"age,job,since,code\n3,a,2024-01-31,1\n", {"Content-Type": "text/csv"}),
        request("GET", "/v2/models/table", None, {"Accept-Encoding": "gzip"}),
        chunked,
    ]  # fmt: skip


def broken(sound: bytes, dice: random.Random) -> bytes:
    found = bytearray(sound)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        place = dice.randrange(len(found) + 1)
        match dice.randrange(6):
            case 0:
                found[place : place + 1] = bytes([dice.randrange(256)])
            case 1:
                del found[place : place + dice.randrange(1, 9)]
            case 2:
                found[place:place] = dice.randbytes(dice.randrange(1, 9))
            case 3:
                found[place:place] = found[max(0, place - 40) : place]
            case 4:
                found[place:place] = dice.choice((b"\r\n", b"\r\n\r\n", b"[" * 9, b'"', b"-1", b"null", b"1e999", b"\0", b"{}"))
            case _:
                found = found[: max(1, place)]
    return bytes(found)


def test_broken_requests(packaged: Callable[[str], Any]) -> None:
    dice = random.Random(5)
    asking = InProcessAsking()
    models = served(packaged("several").path, "several", "1", 0), served(packaged("classes_table").path, "table", "1", 1)
    row = {"age": 39, "job": "cook", "since": "2024-01-31", "code": 1}
    sound = whole_requests(row)
    statuses: dict[int, int] = {}
    with front(*models, asking=asking, limits=Limits(body_bytes=1 << 16, sweep_s=0.05, header_s=1.0)) as running:
        for one in sound:
            assert running.ask(one)[0].status in (200, 400)
        for _ in range(ROUNDS):
            sent = broken(dice.choice(sound), dice)
            with running.connect() as wire:
                wire.sendall(sent)
                wire.shutdown(socket.SHUT_WR)
                for answer in EndlessReader(wire).answers():
                    statuses[answer.status] = statuses.get(answer.status, 0) + 1
                    assert answer.status < 500 or answer.status == 501 or "the model failed" in answer.error, (sent, answer)
                    assert answer.status < 400 or answer.error, sent
        assert running.get("/v2/health/live").status == 200
        assert running.app.in_flight == 0 and all(room.released == 1 for room in asking.rooms)
    assert statuses[400] > ROUNDS // 4 and statuses[200] > 0
