"""The Open Inference Protocol over gRPC, asked with grpcio and this package's own messages; answers equal those of REST."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from front_server import Front, front, served
from in_process import InProcessAsking
from test_front_oip import Shelf

from flatout.base.errors import MachineError, MissingExtra
from flatout.serving.asking import Outcome, ServedModel, Status
from flatout.serving.front.datatypes import NUMPY_TYPES, bytes_elements, bytes_packed
from flatout.serving.front.grpc_messages import SERVICE, message_class
from flatout.serving.front.grpc_port import GrpcPort
from flatout.serving.front.hooks import RowHooks
from flatout.serving.front.limits import Limits
from flatout.serving.options import ServeOptions, WantedModel
from flatout.serving.sample_files import SampleFiles
from flatout.serving.serve import serve, shared_port, shown_address

KINDS = ("classes_table", "photos", "chars", "sequences", "images", "several")
PERSON = {"age": 39.0, "job": "cook", "since": "2023-05-01T10:00:00", "code": 2.0}


class Caller:
    """Calls by name, with fields of the request."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __call__(self, name: str, /, *, timeout: float | None = 20, metadata: Any = (), **fields: Any) -> Any:
        request = message_class(f"{name}Request")(**fields)
        return self.raw(name, request.SerializeToString(), timeout, metadata)

    def raw(self, name: str, content: bytes, timeout: float | None = 20, metadata: Any = ()) -> Any:
        call = self._channel.unary_unary(f"/{SERVICE}/{name}", None, message_class(f"{name}Response").FromString)
        return call(content, timeout=timeout, metadata=metadata)


@contextmanager
def over_grpc(running: Front, limits: Limits | None = None, tls: tuple[str, str] | None = None) -> Iterator[Caller]:
    with shared_port("127.0.0.1", 0) as reserved:
        address = shown_address(reserved.getsockname())
        port = GrpcPort(running.app.site, address, limits or Limits(), tls)
        running.do(port.open)
        asyncio.run_coroutine_threadsafe(port.start(), running.loop).result(10)
        if tls is None:
            channel = grpc.insecure_channel(address)
        else:
            trusted = grpc.ssl_channel_credentials(Path(tls[0]).read_bytes())
            channel = grpc.secure_channel(address, trusted, [("grpc.ssl_target_name_override", "localhost")])
        with channel:
            try:
                yield Caller(channel)
            finally:
                asyncio.run_coroutine_threadsafe(port.stop(), running.loop).result(10)


SHELF = Shelf()


@pytest.fixture(scope="module")
def shared(packaged: Callable[[str], Any]) -> Iterator[Front]:
    models = [served(packaged(kind).path, kind, "1", number) for number, kind in enumerate(KINDS)]
    with front(*models, repository=SHELF) as running:
        yield running


@pytest.fixture(scope="module")
def call(shared: Front) -> Iterator[Caller]:
    with over_grpc(shared) as caller:
        yield caller


def raw_tensors(columns: dict[str, Any]) -> dict[str, Any]:
    inputs, contents = [], []
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            datatype = next(word for word, dtype in NUMPY_TYPES.items() if dtype == column.dtype and word != "BF16")
            inputs.append({"name": name, "datatype": datatype, "shape": column.shape})
            contents.append(column.tobytes())
        else:
            inputs.append({"name": name, "datatype": "BYTES", "shape": [len(column)]})
            contents.append(bytes_packed(one if isinstance(one, bytes) else one.encode() for one in column))
    return {"inputs": inputs, "raw_input_contents": contents}


def answer_of(response: Any) -> dict[str, Any]:
    """Numbers as arrays, BYTES as texts; of raw or typed contents."""
    found: dict[str, Any] = {}
    for place, output in enumerate(response.outputs):
        shape = tuple(output.shape)
        if response.raw_output_contents:
            raw = response.raw_output_contents[place]
            if output.datatype == "BYTES":
                found[output.name] = [text.decode() for text in bytes_elements(raw, output.name)]
            else:
                found[output.name] = np.frombuffer(raw, NUMPY_TYPES[output.datatype]).reshape(shape)
            continue
        ((_, values),) = output.contents.ListFields()
        if output.datatype == "BYTES":
            found[output.name] = [text.decode() for text in values]
        else:
            found[output.name] = np.array(values, NUMPY_TYPES[output.datatype]).reshape(shape)
    return found


def columns_of(exported: Any, kind: str, rows: int) -> dict[str, Any]:
    given = exported.rows(rows)
    if kind == "classes_table":
        people = [{**PERSON, "age": 20.0 + row} for row in range(rows)]
        return {
            name: np.array([one[name] for one in people]) if name in ("age", "code") else [one[name] for one in people]
            for name in PERSON
        }
    if isinstance(given, dict):
        return given
    if kind == "sequences":
        return {"x": np.array([[1, 2, 3]] * rows)}
    return {"photo" if kind == "photos" else "text" if kind == "chars" else "x": given}


def rest_answer(running: Front, model: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The same tensors, over HTTP with binary data."""
    inputs = [
        {**one, "parameters": {"binary_data_size": len(content)}}
        for one, content in zip(fields["inputs"], fields["raw_input_contents"], strict=True)
    ]
    head = json.dumps({"inputs": inputs}).encode()
    body = head + b"".join(fields["raw_input_contents"])
    answer = running.post(f"/v2/models/{model}/infer", body, {"Inference-Header-Content-Length": str(len(head))})
    assert answer.status == 200, answer.body
    return {one["name"]: one["data"] for one in answer.json["outputs"]}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_equal_those_of_rest(shared: Front, call: Caller, packaged: Any, kind: str) -> None:
    fields = raw_tensors(columns_of(packaged(kind), kind, 3))
    response = call("ModelInfer", model_name=kind, id="seven", **fields)
    assert (response.model_name, response.model_version, response.id) == (kind, "1", "seven")
    found, wanted = answer_of(response), rest_answer(shared, kind, fields)
    assert list(found) == list(wanted)
    for name, column in wanted.items():
        assert len(found[name]) == 3
        np.testing.assert_array_equal(
            np.asarray(found[name]).reshape(-1), np.asarray(column).astype(np.asarray(found[name]).dtype)
        )


def test_typed_contents(shared: Front, call: Caller, packaged: Any) -> None:
    rows = packaged("several").rows(2)
    wanted = answer_of(call("ModelInfer", model_name="several", **raw_tensors(rows)))
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [2, 5], "contents": {"fp32_contents": rows["x"].reshape(-1)}},
        {"name": "kind", "datatype": "INT64", "shape": [2], "contents": {"int64_contents": rows["kind"]}},
    ]
    response = call("ModelInfer", model_name="several", inputs=inputs, outputs=[{"name": "scores"}, {"name": "place"}])
    assert not response.raw_output_contents
    found = answer_of(response)
    assert list(found) == ["scores", "place"]
    for name, column in found.items():
        np.testing.assert_array_equal(column, wanted[name])
    person = [
        {"name": name, "datatype": "FP64", "shape": [1], "contents": {"fp64_contents": [value]}}
        if isinstance(value, float)
        else {"name": name, "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [value.encode()]}}
        for name, value in PERSON.items()
    ]
    found = answer_of(call("ModelInfer", model_name="classes_table", inputs=person))
    assert found["class"] == [shared.post("/models/classes_table/predict", PERSON).json["class"]]


def test_pages(call: Caller) -> None:
    assert call("ServerLive").live and call("ServerReady").ready
    assert call("ModelReady", name="several").ready and call("ModelReady", name="several", version="1").ready
    assert not call("ModelReady", name="several", version="2").ready and not call("ModelReady", name="nothing").ready
    server = call("ServerMetadata")
    assert server.name == "flatout" and "model_repository" in server.extensions
    model = call("ModelMetadata", name="images")
    assert model.platform == "flatout" and list(model.versions) == ["1"]
    assert [(one.name, one.datatype, list(one.shape)) for one in model.inputs] == [("x", "UINT8", [-1, 8, 8, 3])]
    config = call("ModelConfig", name="several").config
    assert config.name == "several" and config.input[0].data_type == 11 and list(config.input[0].dims) == [-1, 5]
    assert [one.name for one in call("ModelStatistics").model_stats] == list(KINDS)
    assert [one.name for one in call("ModelStatistics", name="several").model_stats] == ["several"]


def test_the_repository(call: Caller) -> None:
    SHELF.calls.clear()
    assert [one.state for one in call("RepositoryIndex").models] == ["READY", "UNAVAILABLE"]
    assert [one.name for one in call("RepositoryIndex", ready=True).models] == ["several"]
    call("RepositoryModelLoad", model_name="several")
    call("RepositoryModelUnload", model_name="several")
    assert SHELF.calls == [("load", "several"), ("unload", "several")]
    with pytest.raises(grpc.RpcError, match="no package") as refused:
        call("RepositoryModelLoad", model_name="strange")
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError, match="parameters"):
        call("RepositoryModelLoad", model_name="several", parameters={"config": {"string_param": "{}"}})


X = {"name": "x", "datatype": "FP32", "shape": [1, 5]}
KIND = {"name": "kind", "datatype": "INT64", "shape": [1]}
INVALID = [
    ({"model_name": "several"}, "expected 'inputs'"),
    (
        {"model_name": "several", "inputs": [X, KIND], "raw_input_contents": [b""]},
        "as many raw_input_contents as inputs: 2, got 1",
    ),
    ({"model_name": "several", "inputs": [X, KIND], "raw_input_contents": [bytes(20), bytes(7)]}, "'kind'.* is 8 bytes"),
    ({"model_name": "several", "inputs": [X], "raw_input_contents": [bytes(20)]}, "missing kind"),
    ({"model_name": "several", "inputs": [{**X, "datatype": "FLOAT"}, KIND]}, "one of BOOL"),
    ({"model_name": "several", "inputs": [{**X, "datatype": "FP16"}, KIND]}, "FP16 has no typed contents"),
    ({"model_name": "several", "inputs": [{**X, "contents": {"fp64_contents": [1.0]}}, KIND]}, "FP32 comes in fp32_contents"),
    (
        {
            "model_name": "several",
            "inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 5], "contents": {"uint_contents": [300] * 5}}, KIND],
        },
        "300 is no value of the type UINT8",
    ),
    ({"model_name": "several", "inputs": [{**X, "contents": {"fp32_contents": [1.0]}}, KIND]}, "20 bytes"),
    (
        {
            "model_name": "several",
            "inputs": [{**X, "contents": {"fp32_contents": [1.0] * 5}}, KIND],
            "raw_input_contents": [bytes(20), bytes(8)],
        },
        "got both",
    ),
    (
        {
            "model_name": "several",
            "inputs": [X, KIND],
            "raw_input_contents": [bytes(20), bytes(8)],
            "outputs": [{"name": "most "}],
        },
        "has the outputs",
    ),
    (
        {
            "model_name": "several",
            "inputs": [{**X, "parameters": {"shared_memory_region": {"string_param": "a"}}}, KIND],
            "raw_input_contents": [bytes(20), bytes(8)],
        },
        "shared memory",
    ),
    (
        {
            "model_name": "several",
            "inputs": [X, KIND],
            "raw_input_contents": [bytes(20), bytes(8)],
            "parameters": {"priority": {"int64_param": -1}},
        },
        "priority",
    ),
]


@pytest.mark.parametrize("fields, words", INVALID, ids=range(len(INVALID)))
def test_bad_requests(call: Caller, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(grpc.RpcError, match=words) as refused:
        call("ModelInfer", **fields)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_what_is_no_message_and_what_is_unknown(call: Caller) -> None:
    with pytest.raises(grpc.RpcError, match=r"inference\.ModelInferRequest") as refused:
        call.raw("ModelInfer", b"\xff\xff\xff")
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for fields, words in (
        ({"model_name": "severa"}, "several"),
        ({"model_name": "several", "model_version": "9"}, "no version"),
    ):
        with pytest.raises(grpc.RpcError, match=words) as refused:
            call("ModelInfer", **fields)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as refused:
        call("ModelMetadata", name="nothing")
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_outcomes_deadlines_and_priorities(packaged: Any) -> None:
    fields = {"model_name": "m", **raw_tensors(packaged("several").rows(1))}
    asking = InProcessAsking()
    model = served(packaged("several").path)
    with front(model, asking=asking) as running, over_grpc(running) as call:
        asking.outcomes = [Outcome(Status.LATE, retry_after_s=2.5)]
        with pytest.raises(grpc.RpcError) as refused:
            call("ModelInfer", timeout=None, **fields)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        trailing = dict(refused.value.trailing_metadata())
        assert trailing["grpc-retry-pushback-ms"] == "3000"
        assert b"type.googleapis.com/google.rpc.RetryInfo" in trailing["grpc-status-details-bin"]
        asking.outcomes = [Outcome(Status.LATE)]  # the client's own deadline
        with pytest.raises(grpc.RpcError) as refused:
            call("ModelInfer", timeout=5, **fields)
        assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        asking.outcomes = [Outcome(Status.FAILED, problem="it broke")]
        with pytest.raises(grpc.RpcError, match="it broke") as refused:
            call("ModelInfer", **fields)
        assert refused.value.code() == grpc.StatusCode.INTERNAL
        asking.most_rows = 0
        with pytest.raises(grpc.RpcError) as refused:
            call("ModelInfer", **fields)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        asking.most_rows = 10
        asking.asked.clear()
        call("ModelInfer", timeout=None, **fields)
        call("ModelInfer", timeout=5, **fields)
        call(
            "ModelInfer",
            timeout=5,
            parameters={"timeout": {"int64_param": 1_000_000}, "priority": {"uint64_param": 3}},
            **fields,
        )
        call("ModelInfer", metadata=(("x-flatout-deadline-ms", "2000"), ("x-flatout-priority", "4")), **fields)
        (first, _), (second, _), (third, third_priority), (fourth, fourth_priority) = asking.asked
        assert first == 0 and 1 < second < 5.2 and 0 < third <= 1 and 0 < fourth <= 2
        assert (third_priority, fourth_priority) == (3, 4)
        asking.delays_s = [5.0]  # nobody waits for it
        with pytest.raises(grpc.RpcError) as refused:
            call("ModelInfer", timeout=0.2, **fields)
        assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_deadline_after_the_goal_does_not_loosen_it(packaged: Any) -> None:
    asking = InProcessAsking()
    plain = served(packaged("several").path)
    model = ServedModel(plain.name, plain.version, plain.number, plain.package, goal_s=0.5)
    with front(model, asking=asking) as running, over_grpc(running) as call:
        fields = {"model_name": "m", **raw_tensors(packaged("several").rows(1))}
        call("ModelInfer", timeout=20, **fields)
        call("ModelInfer", timeout=0.4, **fields)
    assert asking.asked[0][0] == 0 and 0 < asking.asked[1][0] < 0.45


def test_token_limits_and_counts(packaged: Any) -> None:
    fields = {"model_name": "m", **raw_tensors(packaged("several").rows(1))}
    with (
        front(served(packaged("several").path), token="secret") as running,
        over_grpc(running, Limits(body_bytes=4096)) as call,
    ):
        assert call("ServerLive").live and call("ServerReady").ready
        for name, asked in (("ModelInfer", fields), ("ModelMetadata", {"name": "m"})):
            for metadata in ((), (("authorization", "Bearer other"),)):
                with pytest.raises(grpc.RpcError) as refused:
                    call(name, metadata=metadata, **asked)
                assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            call(name, metadata=(("authorization", "Bearer secret"),), **asked)
        with pytest.raises(grpc.RpcError) as refused:
            call("ModelInfer", metadata=(("authorization", "Bearer secret"),), id="x" * 5000, **fields)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert running.app.in_flight == 0
        (counted,) = [one for one in running.watched.requests if one.rows]
        assert counted.status_code == 200 and counted.method == b"POST" and counted.spent.total_s > 0


def test_tls(packaged: Any, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    tls = (str(certificate), str(key))
    with front(served(packaged("several").path)) as running, over_grpc(running, tls=tls) as call:
        assert call("ServerLive").live


def test_hooks_and_samples(packaged: Any, tmp_path: Path) -> None:
    import pyarrow.dataset as datasets

    def before(columns: Any, headers: Any) -> Any:
        return {**columns, "job": [headers["x-job"]] * len(columns["job"])}

    def after(columns: Any, headers: Any) -> Any:
        return {"class": columns["class"], "half": columns["probability"] / 2}

    samples = SampleFiles(tmp_path, 1.0, lambda line: None)
    exported = packaged("classes_table")
    with front(served(exported.path), hooks=RowHooks(before, after), samples=samples) as running, over_grpc(running) as call:
        fields = raw_tensors(columns_of(exported, "classes_table", 2))
        found = answer_of(call("ModelInfer", model_name="m", metadata=(("x-job", "nurse"),), **fields))
        assert list(found) == ["class", "half"] and len(found["half"]) == 2
    samples.close()
    rows = datasets.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    assert [row["job"] for row in rows] == ["cook", "cook"] and [row["answer_class"] for row in rows] == found["class"]


def test_stopping_answers_what_is_under_way(packaged: Any) -> None:
    asking = InProcessAsking(delays_s=[0.5])
    fields = {"model_name": "m", **raw_tensors(packaged("several").rows(1))}
    answers: list[Any] = []
    with front(served(packaged("several").path), asking=asking) as running:
        with over_grpc(running) as call:
            asks = threading.Thread(target=lambda: answers.append(call("ModelInfer", **fields)))
            asks.start()
            while not asking.asked:
                time.sleep(0.01)
        asks.join(10)  # the server was stopped meanwhile
    assert len(answers) == 1


def test_a_port_in_use_and_a_missing_extra(packaged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_port("127.0.0.1", 0) as taken, pytest.raises(MachineError, match="port"):
        shared_port("127.0.0.1", taken.getsockname()[1])
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="grpc"):
        serve([WantedModel("m", packaged("several").path)], ServeOptions(grpc_port=0))
