"""The Open Inference Protocol, asked by Triton's own client."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from front_server import Front, front, served
from in_process import InProcessAsking
from tritonclient.utils import InferenceServerException

from flatout.serving.asking import Outcome, Status, Timing
from flatout.serving.front.datatypes import bytes_packed
from flatout.serving.front.limits import Limits
from flatout.serving.front.repository import RepositoryEntry

KINDS = ("classes_table", "photos", "chars", "sequences", "images", "several")


class Shelf:
    """A repository whose models can be loaded, except one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def index(self) -> list[RepositoryEntry]:
        return [RepositoryEntry("several", "1", "READY"), RepositoryEntry("old", "1", "UNAVAILABLE", "unloaded")]

    def load(self, name: str, done: Callable[[str | None], None]) -> None:
        self.calls.append(("load", name))
        done(None if name == "several" else f"no package is called {name!r}")

    def unload(self, name: str, done: Callable[[str | None], None]) -> None:
        self.calls.append(("unload", name))
        done(None)


SHELF = Shelf()


@pytest.fixture(scope="module")
def shared(packaged: Callable[[str], Any]) -> Iterator[Front]:
    models = [served(packaged(kind).path, kind, "1", number) for number, kind in enumerate(KINDS)]
    with front(*models, repository=SHELF) as running:
        yield running


@pytest.fixture
def client(shared: Front) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{shared.port}") as made:
        yield made


def tensor(name: str, array: Any, datatype: str, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def texts(values: Any) -> Any:
    return np.array([str(value).encode() for value in values], dtype=object)


def test_the_server_and_its_models(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("several")
    assert client.is_model_ready("several", "1") and not client.is_model_ready("several", "2")
    assert not client.is_model_ready("nothing")
    found = client.get_server_metadata()
    assert found["name"] == "flatout"
    assert found["extensions"] == ["binary_tensor_data", "parameters", "statistics", "model_repository"]
    found = client.get_model_metadata("classes_table")
    assert {one["name"]: one["datatype"] for one in found["inputs"]} == {
        "age": "FP64", "job": "BYTES", "since": "BYTES", "code": "FP64",
    }  # fmt: skip
    assert [one["name"] for one in found["outputs"]] == ["prediction", "class", "probability", "probabilities"]
    assert client.get_model_metadata("images", "1")["inputs"] == [{"name": "x", "datatype": "UINT8", "shape": [-1, 8, 8, 3]}]
    config = client.get_model_config("several")
    assert config["max_batch_size"] == 0 and config["input"][0] == {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 5]}
    with pytest.raises(InferenceServerException, match="severa"):
        client.get_model_metadata("severa")


def test_the_repository(client: triton.InferenceServerClient) -> None:
    assert [one["state"] for one in client.get_model_repository_index()] == ["READY", "UNAVAILABLE"]
    client.load_model("several")
    client.unload_model("several")
    assert SHELF.calls == [("load", "several"), ("unload", "several")]
    with pytest.raises(InferenceServerException, match="no package"):
        client.load_model("strange")
    with pytest.raises(InferenceServerException, match="parameters"):
        client.load_model("several", config="{}")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_arrays_in_every_form(shared: Front, client: Any, packaged: Any, binary_in: bool, binary_out: bool) -> None:
    exported = packaged("several")
    rows = exported.rows(4)
    inputs = [tensor("x", rows["x"], "FP32", binary_in), tensor("kind", rows["kind"], "INT64", binary_in)]
    wanted = exported.package().predict(rows)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("place", "scores")]
    for ask in ({}, {"outputs": outputs, "request_id": "one"}):
        found = client.infer("several", inputs, **ask)
        answer = found.get_response()
        assert [one["name"] for one in answer["outputs"]] == (["place", "scores"] if ask else ["scores", "most", "place"])
        assert answer.get("id") == ask.get("request_id") and answer["model_version"] == "1"
        np.testing.assert_allclose(found.as_numpy("scores"), wanted["scores"], atol=1e-5)
        assert found.as_numpy("place").tolist() == wanted["place"].tolist()
    mixed = [inputs[0], tensor("kind", rows["kind"], "INT64", not binary_in)]
    found = client.infer(
        "several", mixed, outputs=[outputs[0], triton.InferRequestedOutput("most", binary_data=not binary_out)]
    )
    np.testing.assert_allclose(found.as_numpy("most"), wanted["most"], atol=1e-5)
    assert found.as_numpy("place").tolist() == wanted["place"].tolist()


@pytest.mark.parametrize("binary", [True, False])
def test_columns_of_a_table(client: Any, packaged: Any, binary: bool) -> None:
    exported = packaged("classes_table")
    raw, wanted = exported.rows(3), exported.package().predict(exported.rows(3))
    inputs = [
        tensor("age", np.array(raw["age"], np.float64), "FP64", binary),
        tensor("job", texts(raw["job"]), "BYTES", binary),
        tensor("since", texts(raw["since"]), "BYTES", binary),
        tensor("code", np.array(raw["code"], np.int64).reshape(3, 1), "INT64", binary),
    ]
    found = client.infer("classes_table", inputs)
    assert [name.decode() for name in found.as_numpy("class")] == wanted["class"].tolist()
    np.testing.assert_allclose(found.as_numpy("probabilities"), wanted["probabilities"], atol=1e-5)
    only = client.infer("classes_table", inputs, outputs=[triton.InferRequestedOutput("class", binary_data=binary)])
    assert [_text(name) for name in only.as_numpy("class")] == wanted["class"].tolist()


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def test_json_may_have_null_and_numbers_for_categories(shared: Front, packaged: Any) -> None:
    columns = {"age": [None, 20.5], "job": ["cook", None], "since": ["2024-01-31", None], "code": ["2", 3]}
    types = {"age": "FP64", "job": "BYTES", "since": "BYTES", "code": "FP64"}
    inputs = [{"name": name, "datatype": types[name], "shape": [2], "data": data} for name, data in columns.items()]
    inputs[3]["data"] = [2, 3]
    answer = shared.post("/v2/models/classes_table/infer", {"inputs": inputs})
    wanted = packaged("classes_table").package().predict({**columns, "code": [2, 3]})
    assert answer.json["outputs"][1]["data"] == wanted["class"].tolist()


def test_prepared_rows_of_a_table(client: Any, packaged: Any) -> None:
    exported = packaged("classes_table")
    prepared = {name: column.numpy() for name, column in exported.package().fitted.rows(exported.rows(3)).items()}
    types = {"numeric": "FP32", "ids": "INT32"}
    found = client.infer("classes_table", [tensor(name, array, types[name]) for name, array in prepared.items()])
    wanted = exported.package().predict(exported.rows(3))
    assert [name.decode() for name in found.as_numpy("class")] == wanted["class"].tolist()
    prepared["ids"] = np.full_like(prepared["ids"], 10_000)
    with pytest.raises(InferenceServerException, match="10000"):
        client.infer("classes_table", [tensor(name, array, types[name]) for name, array in prepared.items()])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("names", [("numeric", "ids"), ("ids", "numeric")])
@pytest.mark.parametrize("wanted", [None, ["class"], ["class", "prediction"]])
def test_prepared_rows_in_any_order_give_the_wanted_outputs(
    client: Any, packaged: Any, rows: int, names: tuple[str, str], wanted: list[str] | None
) -> None:
    """One row whose tensors lie as in shared memory is copied in one piece; all others tensor by tensor."""
    exported = packaged("classes_table")
    prepared = {name: column.numpy() for name, column in exported.package().fitted.rows(exported.rows(rows)).items()}
    types = {"numeric": "FP32", "ids": "INT32"}
    given = [tensor(name, prepared[name], types[name]) for name in names]
    outputs = None if wanted is None else [triton.InferRequestedOutput(name) for name in wanted]
    expected = exported.package().predict(exported.rows(rows))
    for _ in range(2):  # the second time the form of the request is known
        found = client.infer("classes_table", given, outputs=outputs)
        assert [name.decode() for name in found.as_numpy("class")] == expected["class"].tolist()
        if wanted is None:
            assert np.allclose(found.as_numpy("probabilities"), np.asarray(expected["probabilities"]), atol=1e-6)
        elif "prediction" in wanted:
            assert found.as_numpy("prediction").shape == (rows,)
        assert wanted is None or found.as_numpy("probabilities") is None
    for wrong in (-1, 10_000):
        prepared["ids"] = np.full_like(prepared["ids"], wrong)
        with pytest.raises(InferenceServerException, match=str(wrong)):
            client.infer("classes_table", [tensor(name, prepared[name], types[name]) for name in names])


def test_photos(shared: Front, client: Any, packaged: Any) -> None:
    exported = packaged("photos")
    files = exported.rows(3)
    wanted = exported.package().predict(files)
    found = client.infer("photos", [tensor("photo", np.array(files, dtype=object), "BYTES")])
    assert found.as_numpy("prediction").tolist() == wanted["prediction"].tolist()
    np.testing.assert_allclose(found.as_numpy("probability"), wanted["probability"], atol=1e-5)
    bare = shared.post("/v2/models/photos/infer", files[0], {"Inference-Header-Content-Length": "0"})
    assert json.loads(bare.body[: int(bare.headers["inference-header-content-length"])])["outputs"][0]["shape"] == [1]
    pixels = np.zeros((2, 3, 16, 16), np.uint8)
    assert client.infer("photos", [tensor("x", pixels, "UINT8")]).as_numpy("prediction").shape == (2,)
    with pytest.raises(InferenceServerException, match="row 1"):
        client.infer("photos", [tensor("photo", np.array([files[0], b"no photo"], dtype=object), "BYTES")])


def test_texts_and_tokens(client: Any, packaged: Any) -> None:
    exported = packaged("chars")
    rows = exported.rows(2)
    wanted = exported.package().predict(rows)
    found = client.infer("chars", [tensor("text", texts(rows), "BYTES")])
    assert found.as_numpy("prediction").tolist() == wanted["prediction"].tolist()
    ids = exported.package().fitted.rows(rows)["x"].numpy()
    assert client.infer("chars", [tensor("x", ids[:, :5].copy(), "INT64")]).as_numpy("prediction").shape == (2, 5)
    for wrong, why in ((ids + 900, "token ids"), (np.concatenate([ids, ids], 1), "tokens")):
        with pytest.raises(InferenceServerException, match=why):
            client.infer("chars", [tensor("x", wrong, "INT64")])
    ids, lengths = np.array([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]]), np.array([3, 3])
    prepared = client.infer("sequences", [tensor("x", ids, "INT64"), tensor("length", lengths, "INT64")])
    raw = client.infer("sequences", [tensor("x", ids[:, :3].copy(), "INT64")])
    np.testing.assert_allclose(prepared.as_numpy("probabilities"), raw.as_numpy("probabilities"), atol=1e-6)
    with pytest.raises(InferenceServerException, match="length"):
        client.infer("sequences", [tensor("x", ids, "INT64"), tensor("length", lengths + 3, "INT64")])


def test_channels_last_as_in_training_or_first_as_the_program_has_them(shared: Front, client: Any, packaged: Any) -> None:
    exported = packaged("images")
    x = exported.rows(3)
    wanted = exported.package().predict(x)["prediction"].tolist()
    assert client.infer("images", [tensor("x", x, "UINT8")]).as_numpy("prediction").tolist() == wanted
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    assert client.infer("images", [tensor("x", first, "UINT8")]).as_numpy("prediction").tolist() == wanted
    bare = shared.post("/v2/models/images/infer", x.tobytes(), {"Inference-Header-Content-Length": "0"})
    size = int(bare.headers["inference-header-content-length"])
    assert np.frombuffer(bare.body[size : size + 24], np.int64).tolist() == wanted
    assert "192 bytes" in shared.post("/v2/models/images/infer", b"abc", {"Inference-Header-Content-Length": "0"}).error


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_compressed(client: Any, packaged: Any, packing: str) -> None:
    exported = packaged("several")
    rows = exported.rows(24)
    rows = {name: np.concatenate([column] * 20) for name, column in rows.items()}
    inputs = [tensor("x", rows["x"], "FP32"), tensor("kind", rows["kind"], "INT64")]
    found = client.infer("several", inputs, request_compression_algorithm=packing, response_compression_algorithm=packing)
    np.testing.assert_allclose(found.as_numpy("scores"), exported.package().predict(rows)["scores"], atol=1e-5)


def test_bombs_and_other_encodings(packaged: Any) -> None:
    bomb, at = zlib.compress(bytes(5 << 20), 9), "/v2/models/m/infer"
    with front(served(packaged("several").path), limits=Limits(unpacked_bytes=4 << 20)) as running:
        assert running.post(at, bomb, {"Content-Encoding": "deflate"}).status == 413
        assert running.post(at, b"no gzip", {"Content-Encoding": "gzip"}).status == 400
        assert running.post(at, gzip.compress(b"{}" * 50)[:-12], {"Content-Encoding": "gzip"}).status == 400
        assert running.post(at, b"{}", {"Content-Encoding": "br"}).status == 415


def test_statistics_count_requests(shared: Front, client: Any, packaged: Any) -> None:
    shared.watched.requests.clear()
    client.infer("images", [tensor("x", packaged("images").rows(3), "UINT8")])
    (found,) = client.get_inference_statistics("images", "1")["model_stats"]
    assert (found["name"], found["inference_count"], found["inference_stats"]["success"]["count"]) == ("images", 3, 1)
    assert len(client.get_inference_statistics()["model_stats"]) == len(KINDS)


def test_deadlines_and_priorities(packaged: Any) -> None:
    late = Outcome(Status.LATE, timing=Timing(queue_s=0.25), retry_after_s=2.1)
    gone, failed = Outcome(Status.GONE), Outcome(Status.FAILED, problem="CUDA out of memory\nTraceback: a\nb")
    asking = InProcessAsking(outcomes=[late, gone, failed], most_rows=8)
    exported = packaged("several")
    with front(served(exported.path, "several"), asking=asking) as running:
        body = {"inputs": _json_inputs(exported.rows(1)), "parameters": {"timeout": 5_000_000, "priority": 2}}
        answer = running.post("/v2/models/several/infer", body)
        assert answer.status == 503 and answer.headers["retry-after"] == "3" and "250" in answer.error
        headers = {"x-flatout-deadline-ms": "700", "x-flatout-priority": "9"}
        answer = running.post("/predict", {name: column[0].tolist() for name, column in exported.rows(1).items()}, headers)
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        assert [(round(deadline_s, 1), priority) for deadline_s, priority in asking.asked] == [(5.0, 2), (0.7, 9)]
        answer = running.post("/v2/models/several/infer", {"inputs": _json_inputs(exported.rows(1))})
        assert answer.status == 500 and "CUDA out of memory" in answer.error and asking.asked[2] == (0.0, 0)
        assert running.post("/v2/models/several/infer", {"inputs": _json_inputs(exported.rows(9))}).status == 413
        for wrong in ({"x-flatout-deadline-ms": "soon"}, {"x-flatout-deadline-ms": "-1"}, {"x-flatout-deadline-ms": "nan"},
                      {"x-flatout-priority": "first"}, {"x-flatout-priority": "-1"}):  # fmt: skip
            assert running.post("/v2/models/several/infer", body, wrong).status == 400
        assert all(room.released == 1 for room in asking.rooms)


def _json_inputs(rows: Any) -> list[dict[str, Any]]:
    types = {"x": "FP32", "kind": "INT64"}
    return [
        {"name": name, "datatype": types[name], "shape": list(column.shape), "data": column.reshape(-1).tolist()}
        for name, column in rows.items()
    ]


X = {"name": "x", "datatype": "FP32", "shape": [1, 5], "data": [1, 2, 3, 4, 5]}
KIND = {"name": "kind", "datatype": "INT64", "shape": [1], "data": [1]}
WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "JSON"),
    "a list": ([], "object"),
    "no inputs": ({}, "inputs"),
    "inputs are no list": ({"inputs": {"x": 1}}, "list"),
    "an input is no object": ({"inputs": [3]}, "input 0"),
    "missing input": ({"inputs": [X]}, "missing kind"),
    "unknown input": ({"inputs": [X, {**KIND, "name": "king"}]}, "king"),
    "input twice": ({"inputs": [X, X]}, "twice"),
    "datatype": ({"inputs": [{**X, "datatype": "FP31"}, KIND]}, "FP31"),
    "another datatype": ({"inputs": [X, {**KIND, "datatype": "BYTES", "data": ["a"]}]}, "BYTES"),
    "shape": ({"inputs": [{**X, "shape": [1, 4]}, KIND]}, "shape"),
    "shape is text": ({"inputs": [{**X, "shape": "5"}, KIND]}, "shape"),
    "shape below 0": ({"inputs": [{**X, "shape": [-1, 5]}, KIND]}, "shape"),
    "huge shape": ({"inputs": [{**X, "shape": [1 << 39, 1 << 39]}, KIND]}, "shape"),
    "no dimensions": ({"inputs": [{**X, "shape": []}, KIND]}, "shape"),
    "too few values": ({"inputs": [{**X, "data": [1, 2]}, KIND]}, "2"),
    "ragged": ({"inputs": [{**X, "shape": [2, 5], "data": [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]}, KIND]}, "length"),
    "deep": ({"inputs": [{**X, "data": [[[[1]]], 2, 3, 4, 5]}, KIND]}, "nested"),
    "text for numbers": ({"inputs": [{**X, "data": ["a", 2, 3, 4, 5]}, KIND]}, "FP32"),
    "fractions": ({"inputs": [X, {**KIND, "data": [1.5]}]}, "INT64"),
    "too large": ({"inputs": [X, {**KIND, "data": [1 << 63]}]}, "INT64"),
    "NaN": (json.dumps({"inputs": [{**X, "data": [float("nan")] * 5}, KIND]}).encode(), "JSON"),
    "null": ({"inputs": [{**X, "data": [None] * 5}, KIND]}, "finite"),
    "rows differ": ({"inputs": [X, {**KIND, "shape": [2], "data": [1, 1]}]}, "rows"),
    "no rows": ({"inputs": [{**X, "shape": [0, 5], "data": []}, {**KIND, "shape": [0], "data": []}]}, "no rows"),
    "no data": ({"inputs": [{**X, "data": None}, KIND]}, "data"),
    "both kinds of data": ({"inputs": [{**X, "parameters": {"binary_data_size": 20}}, KIND]}, "both"),
    "size is text": ({"inputs": [{**X, "data": None, "parameters": {"binary_data_size": "20"}}, KIND]}, "binary_data_size"),
    "shared memory": ({"inputs": [{**X, "data": None, "parameters": {"shared_memory_region": "a"}}, KIND]}, "shared memory"),
    "parameters": ({"inputs": [X, KIND], "parameters": 5}, "parameters"),
    "unknown output": ({"inputs": [X, KIND], "outputs": [{"name": "score"}]}, "scores"),
    "outputs": ({"inputs": [X, KIND], "outputs": "all"}, "outputs"),
    "classification": ({"inputs": [X, KIND], "outputs": [{"name": "scores", "parameters": {"classification": 2}}]}, "class"),
    "timeout": ({"inputs": [X, KIND], "parameters": {"timeout": "1"}}, "timeout"),
    "priority": ({"inputs": [X, KIND], "parameters": {"priority": -1}}, "priority"),
    "id": ({"id": {}, "inputs": [X, KIND]}, "id"),
    "depth": (b'{"inputs":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "JSON"),
    "bytes after the JSON": (json.dumps({"inputs": [X, KIND]}).encode() + b"{}", "JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests_name_what_is_wrong(shared: Front, name: str) -> None:
    body, word = WRONG[name]
    answer = shared.post("/v2/models/several/infer", body)
    assert answer.status == 400 and word in answer.error


def binary(header: dict[str, Any], *pieces: bytes) -> tuple[bytes, dict[str, str]]:
    text = json.dumps(header).encode()
    return text + b"".join(pieces), {"Inference-Header-Content-Length": str(len(text))}


BX = {"name": "x", "datatype": "FP32", "shape": [1, 5], "parameters": {"binary_data_size": 20}}
BKIND = {"name": "kind", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}


@pytest.mark.parametrize("pieces", [(bytes(19), bytes(8)), (bytes(20), bytes(9)), (), (bytes(20),)])
def test_binary_data_of_another_size(shared: Front, pieces: tuple[bytes, ...]) -> None:
    at = "/v2/models/several/infer"
    body, headers = binary({"inputs": [BX, BKIND]}, *pieces)
    assert "bytes" in shared.post(at, body, headers).error
    good, headers = binary({"inputs": [BX, BKIND]}, bytes(28))
    assert shared.post(at, good, headers).status == 200
    assert "bytes" in shared.post(at, body, headers).error  # now that the header is known
    small, headers = binary({"inputs": [{**BX, "parameters": {"binary_data_size": 16}}, BKIND]}, bytes(24))
    assert "binary_data_size" in shared.post(at, small, headers).error


@pytest.mark.parametrize("given", ["", "x", "-1", "99999", "1e3", "00x"])
def test_wrong_sizes_of_the_json(shared: Front, given: str) -> None:
    body, _ = binary({"inputs": [BX, BKIND]}, bytes(28))
    assert "Inference-Header-Content-Length" in shared.post(
        "/v2/models/several/infer", body, {"Inference-Header-Content-Length": given}).error  # fmt: skip


def test_numbers_that_are_not_finite(shared: Front) -> None:
    body, headers = binary({"inputs": [BX, BKIND]}, np.array([1, 2, np.nan, 4, np.inf], np.float32).tobytes(), bytes(8))
    assert "finite" in shared.post("/v2/models/several/infer", body, headers).error


def test_truncated_bytes_elements(shared: Front) -> None:
    for content in (b"\1\0", b"\xff\xff\xff\xff", b"\5\0\0\0abc", bytes_packed([b"a", b"b"]), b""):
        header = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(content)}}
        body, headers = binary({"inputs": [header]}, content)
        assert "text" in shared.post("/v2/models/chars/infer", body, headers).error
    content = bytes_packed([b"\xff\xfe"])
    header = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(content)}}
    body, headers = binary({"inputs": [header]}, content)
    assert "UTF-8" in shared.post("/v2/models/chars/infer", body, headers).error


def test_answers_that_are_not_finite_are_null_in_json(packaged: Any) -> None:
    scores = np.array([[np.nan, np.inf, 1.0]], np.float32)
    outputs = {"scores": scores, "most": scores[:, 0], "place": np.array([1])}
    asking = InProcessAsking(outcomes=[Outcome(Status.ANSWERED, outputs)] * 2)
    with front(served(packaged("several").path, "several"), asking=asking) as running:
        answer = running.post("/v2/models/several/infer", {"inputs": [X, KIND]})
        assert answer.json["outputs"][0]["data"] == [None, None, 1.0]
        assert running.post("/predict", {"x": [1, 2, 3, 4, 5], "kind": 1}).json["scores"] == [None, None, 1.0]
