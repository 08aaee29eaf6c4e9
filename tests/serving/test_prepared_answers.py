"""What is prepared for many requests changes nothing: known heads, answers in pieces, ids checked by one sum."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from front_server import Front, Reader, front, request, served

from flatout.packaging.ports import Port
from flatout.serving.asking import Timing
from flatout.serving.front.known_heads import KnownHeads
from flatout.serving.front.prepared_checks import ids_in_one_sum
from flatout.serving.front.watching import MOMENTS, AnsweredRequest
from flatout.serving.records import RowLayout

_OF_THE_ANSWER = {"date", "x-flatout-queue-ms", "x-flatout-compute-ms"}  # differ from answer to answer


@pytest.fixture(scope="module")
def shared(packaged: Callable[[str], Any]) -> Iterator[Front]:
    with front(served(packaged("classes_table").path, "m")) as running:
        yield running


@pytest.fixture(scope="module")
def row(packaged: Callable[[str], Any]) -> tuple[bytes, int]:
    """The body of a request with prepared tensors, and the bytes of its JSON."""
    exported = packaged("classes_table")
    prepared = {name: column.numpy() for name, column in exported.package().fitted.rows(exported.rows(1)).items()}
    types = {"numeric": "FP32", "ids": "INT32"}
    inputs = [
        {"name": name, "datatype": types[name], "shape": array.shape, "parameters": {"binary_data_size": array.nbytes}}
        for name, array in prepared.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(array.tobytes() for array in prepared.values()), len(head)


@pytest.mark.parametrize(
    "more",
    [{}, {"Connection": "keep-alive"}, {"Accept-Encoding": "gzip, deflate"}, {"Accept-Encoding": "gzip"},
     {"Content-Encoding": "identity"}, {"x-flatout-priority": "1"}],
)  # fmt: skip
def test_a_known_head_has_the_answer_of_a_new_one(shared: Front, row: tuple[bytes, int], more: dict[str, str]) -> None:
    body, size = row
    asked = request("POST", "/v2/models/m/infer", body, {"Inference-Header-Content-Length": str(size), **more})
    with shared.connect() as wire:
        reader, answers = Reader(wire), []
        for cut in (len(asked), len(asked), len(asked) - len(body) + 5):  # new; known; known, and in two pieces
            wire.sendall(asked[:cut])
            wire.sendall(asked[cut:])
            answers.append(reader.answer())
    first, *others = answers
    assert first.status == 200 and ("connection" in first.headers) == ("Connection" in more)
    for other in others:
        assert list(other.headers) == list(first.headers) and other.body == first.body
        assert {name: other.headers[name] for name in other.headers.keys() - _OF_THE_ANSWER} == {
            name: first.headers[name] for name in first.headers.keys() - _OF_THE_ANSWER
        }


def test_a_known_head_with_a_shorter_json_or_body_is_refused(shared: Front, row: tuple[bytes, int]) -> None:
    body, size = row
    headers = {"Inference-Header-Content-Length": str(size)}
    for _ in range(2):
        assert shared.post("/v2/models/m/infer", body, headers).status == 200
    wrong = b"{" + b" " * (len(body) - 1)
    assert "JSON" in shared.post("/v2/models/m/infer", wrong, headers).error
    for given in (str(len(body) + 1), "-1", "\u00b2"):
        for _ in range(2):
            answer = shared.post("/v2/models/m/infer", body, {"Inference-Header-Content-Length": given})
            assert answer.status == 400 and "Inference-Header-Content-Length" in answer.error


def test_heads_that_are_kept_are_few() -> None:
    heads = KnownHeads(1 << 20)
    for number in range(2000):
        head = b"POST /%d HTTP/1.1\r\nContent-Length: 4\r\n\r\n" % number
        heads.remember(head, b"POST", b"/%d" % number, {b"content-length": b"4"}, 4)
        assert heads.get(head) is not None
    assert sum(heads.get(b"POST /%d HTTP/1.1\r\nContent-Length: 4\r\n\r\n" % one) is not None for one in range(2000)) <= 512


def test_one_sum_checks_all_ids() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        most = [draw.choice([1, 2, 100, (1 << 31) - 1, 1 << 31]) for _ in range(draw.randint(1, 6))]
        ids = [draw.choice([0, one - 1, one, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, draw.randrange(one)]) for one in most]
        body = b"xx" + struct.pack(f"<{len(ids)}I", *ids) + b"\xff\xff"
        assert ids_in_one_sum(most)(body, 2) == all(one < limit for one, limit in zip(ids, most, strict=True))


def test_fields_of_a_record() -> None:
    layout = RowLayout.of([Port("a", "float32", (None, 3)), Port("b", "int64", (None,)), Port("c", "uint8", (None, 1))])
    memory = np.arange(layout.row_bytes, dtype=np.uint8)
    columns = layout.columns(memory, 1)
    assert layout.fields_of(memory.tobytes()) == tuple(columns[name].tobytes() for name in "abc")


def test_spent_times_of_an_answer() -> None:
    moments = MOMENTS.pack(10.0, 10.5, 10.75, 12.0, 14.0, 15.0, 0.25, 0.5, 0.125, 1.0)
    spent = AnsweredRequest(None, b"GET", b"/", 200, 0, 0, moments, Timing()).spent
    assert spent == (0.5, 0.25, 1.0, 0.25, 0.5, 0.125, 1.0, 1.0, 5.0)
    without = AnsweredRequest(None, b"GET", b"/", 400, 0, 0, MOMENTS.pack(1.0, 1.0, 1.5, 0, 0, 2.0, 0, 0, 0, 0), Timing())
    assert without.spent.decode_s == without.spent.encode_s == 0.0 and without.total_s == without.spent.total_s == 1.0
