"""/predict: what people send, by curl or from a page."""

from __future__ import annotations

import base64
import csv
import io
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from front_server import Front, Reader, front, request, served
from PIL import Image

KINDS = ("classes_table", "photos", "chars", "sequences", "images", "several")


@pytest.fixture(scope="module")
def shared(packaged: Callable[[str], Any]) -> Iterator[Front]:
    with front(*(served(packaged(kind).path, kind, "1", number) for number, kind in enumerate(KINDS))) as running:
        yield running


def rows_of(packaged: Any, count: int) -> list[dict[str, Any]]:
    columns = packaged("classes_table").rows(count)
    plain = {name: [str(value) if name == "since" and value is not None else value for value in column]
             for name, column in columns.items()}  # fmt: skip
    return [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]


def test_rows_of_a_table_in_every_form(shared: Front, packaged: Any) -> None:
    at, rows = "/models/classes_table/predict", rows_of(packaged, 3)
    wanted = packaged("classes_table").package().predict(packaged("classes_table").rows(3))
    one = shared.post(at, rows[0]).json
    assert one["class"] == wanted["class"][0] and one["prediction"] == int(wanted["prediction"][0])
    assert one["probability"] == pytest.approx(float(wanted["probability"][0]), abs=1e-5)
    many = shared.post(at, rows).json
    assert [row["class"] for row in many["predictions"]] == wanted["class"].tolist() and many["predictions"][0] == one
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert shared.post(at, {"rows": rows}).json == shared.post(at, columns).json == many
    as_curl_d = {"Content-Type": "application/x-www-form-urlencoded"}
    assert shared.post(at, str(rows[0]).replace("'", '"').replace("None", "null").encode(), as_curl_d).json == one


def test_csv_in_and_out(shared: Front, packaged: Any) -> None:
    at, rows = "/models/classes_table/predict", rows_of(packaged, 3)
    text = io.StringIO()
    lines = csv.DictWriter(text, [*rows[0], "other"])
    lines.writeheader()
    lines.writerows(rows)
    answer = shared.post(at, text.getvalue().encode(), {"Content-Type": "text/csv; charset=utf-8"})
    assert answer.headers["content-type"].startswith("text/csv")
    found = list(csv.DictReader(io.StringIO(answer.body.decode())))
    wanted = shared.post(at, rows).json["predictions"]
    assert [row["class"] for row in found] == [row["class"] for row in wanted]
    assert float(found[0]["probabilities_0"]) == pytest.approx(wanted[0]["probabilities"][0])
    as_json = shared.post(at, text.getvalue().encode(), {"Content-Type": "text/csv", "Accept": "application/json"})
    assert as_json.json["predictions"] == wanted
    answer = shared.post(at, rows[0], {"Accept": "text/csv"})
    assert next(csv.DictReader(io.StringIO(answer.body.decode())))["class"] == wanted[0]["class"]


def test_unseen_and_missing_values_are_as_in_training(shared: Front, packaged: Any) -> None:
    at, row = "/models/classes_table/predict", rows_of(packaged, 1)[0]
    assert row["job"] == "astronaut"  # no training row has it
    assert shared.post(at, {**row, "job": "other unseen"}).json == shared.post(at, row).json
    assert shared.post(at, dict.fromkeys(row)).status == 200


WRONG: dict[str, tuple[Any, str]] = {
    "missing column": ({"age": 3, "job": "a", "since": None}, "code"),
    "misspelt column": ({"age": 3, "jobb": "a", "since": None, "code": 1}, "jobb"),
    "missing in a row": ([{"age": 3, "job": "a", "since": None, "code": 1}, {"age": 3}], "row 1"),
    "text for a number": ({"age": "old", "job": "a", "since": None, "code": 1}, "age"),
    "no date": ({"age": 3, "job": "a", "since": "yesterday", "code": 1}, "since"),
    "an object for a value": ({"age": {}, "job": "a", "since": None, "code": 1}, "age"),
    "a list in a column": ({"age": [[1]], "job": ["a"], "since": [None], "code": [1]}, "age"),
    "lists and values": ({"age": [3], "job": "a", "since": None, "code": 1}, "job"),
    "lengths": ({"age": [3, 4], "job": ["a"], "since": [None], "code": [1]}, "length"),
    "no rows": ({"age": [], "job": [], "since": [], "code": []}, "rows"),
    "empty list": ([], "row"),
    "empty object": ({}, "age"),
    "a number": (3, "got 3"),
    "rows is no list": ({"rows": 3}, "rows"),
    "a row is no object": ({"rows": [3]}, "row 0"),
    "null": (b"null", "age"),
    "not finite": (b'{"age": NaN}', "JSON"),
    "nothing": (b"", "empty"),
    "broken": (b'{"age": 3', "JSON"),
    "depth": (b"[" * 50_000, "JSON"),
    "deep columns": (b'{"age":' + b"[" * 900 + b"]" * 900 + b',"job":["a"],"since":[null],"code":[1]}', "age"),
    "too large": ({"age": 1e300, "job": "a", "since": None, "code": 1}, "age"),
    "half of a character": (b'{"age": 3, "job": "\\ud800", "since": null, "code": 1}', "JSON"),
    "many columns": ({f"column {place}": 1 for place in range(30_000)}, "30,000"),
    "other bytes": (b"\xff\xfe\xfd", "JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_name_what_is_wrong(shared: Front, name: str) -> None:
    body, word = WRONG[name]
    answer = shared.post("/models/classes_table/predict", body)
    assert answer.status == 400 and word in answer.error


@pytest.mark.parametrize(("text", "word"), [("age,job\n3,a\n", "since"), ("age,job,since,code\n3,a\n", "row 0"),
                                            ("age,job,since,code\nold,a,,1\n", "age"), ("age,job,since,code\n", "no rows"),
                                            ('age,job,since,code\n"3', "row 0"), ("\n", "rows"), ("a\0b", "rows")])  # fmt: skip
def test_wrong_csv(shared: Front, text: str, word: str) -> None:
    assert word in shared.post("/models/classes_table/predict", text.encode(), {"Content-Type": "text/csv"}).error


def test_photos(shared: Front, packaged: Any) -> None:
    at, files = "/models/photos/predict", packaged("photos").rows(3)
    wanted = packaged("photos").package().predict(files)["class"].tolist()
    for kind in ("image/jpeg", "image/png", "application/octet-stream", "application/x-www-form-urlencoded"):
        assert shared.post(at, files[0], {"Content-Type": kind}).json["class"] == wanted[0]
    texts = [base64.b64encode(file).decode() for file in files]
    assert shared.post(at, {"photo": texts[0]}).json["class"] == wanted[0]
    for many in ({"photo": texts}, [{"photo": text} for text in texts], {"rows": texts}):
        assert [row["class"] for row in shared.post(at, many).json["predictions"]] == wanted
    form = _form(files)
    answer = shared.post(at, form, {"Content-Type": 'multipart/form-data; boundary="xyz"'})
    assert [row["class"] for row in answer.json["predictions"]] == wanted
    answer = shared.post(at, _form(files[:1]), {"Content-Type": "multipart/form-data; boundary=xyz", "Accept": "text/csv"})
    assert wanted[0] in answer.body.decode()


def _form(files: list[bytes]) -> bytes:
    head = b'--xyz\r\nContent-Disposition: form-data; name="photo"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    note = b'--xyz\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    return note + b"".join(head + file + b"\r\n" for file in files) + b"--xyz--\r\n"


def test_wrong_photos(shared: Front, packaged: Any) -> None:
    at, file = "/models/photos/predict", packaged("photos").rows(1)[0]
    for body, headers, word in (
        (b"no photo", {"Content-Type": "image/jpeg"}, "photo"),
        (file[: len(file) // 2], {"Content-Type": "image/jpeg"}, "photo"),
        (file[:20], {"Content-Type": "image/png"}, "photo"),
        (b'{"photo": "#"}', {"Content-Type": "application/json"}, "base64"),
        (b'{"photo": 3}', {"Content-Type": "application/json"}, "base64"),
        (b"--abc", {"Content-Type": "multipart/form-data; boundary=xyz"}, "boundary"),
        (b"--xyz", {"Content-Type": "multipart/form-data"}, "boundary"),
        (_form([file])[:-60], {"Content-Type": "multipart/form-data; boundary=xyz"}, "truncated"),
        (_form([]), {"Content-Type": "multipart/form-data; boundary=xyz"}, "file"),
        (_bomb(), {"Content-Type": "image/png"}, "photo"),
    ):
        answer = shared.post(at, body, headers)
        assert answer.status == 400 and word in answer.error
    assert shared.post(at, b"a,b\n", {"Content-Type": "text/csv"}).status == 415
    assert shared.post(at, b"a", {"Content-Type": "video/mp4"}).status == 415


def _bomb() -> bytes:
    """A small file that says it has 30,000 x 30,000 pixels."""
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    content = bytearray(out.getvalue())
    content[16:24] = (30_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def test_texts_tokens_and_arrays(shared: Front, packaged: Any) -> None:
    rows = packaged("chars").rows(2)
    wanted = packaged("chars").package().predict(rows)["prediction"].tolist()
    at = "/models/chars/predict"
    for one in ({"text": rows[0]}, rows[0]):
        assert shared.post(at, one).json["prediction"] == wanted[0]
    assert shared.post(at, rows[0].encode(), {"Content-Type": "text/plain"}).json["prediction"] == wanted[0]
    for many in ({"text": rows}, rows, [{"text": row} for row in rows]):
        assert [row["prediction"] for row in shared.post(at, many).json["predictions"]] == wanted
    assert "ü" in shared.post(at, {"text": "ü"}).error
    assert "prediction" in shared.post("/models/sequences/predict", {"x": [1, 2, 3]}).json
    assert len(shared.post("/models/sequences/predict", {"x": [[1, 2, 3], [4]]}).json["predictions"]) == 2
    assert "8" in shared.post("/models/sequences/predict", {"x": [99]}).error
    x = packaged("images").rows(2)
    wanted = packaged("images").package().predict(x)["prediction"].tolist()
    at = "/models/images/predict"
    assert shared.post(at, {"x": x[0].tolist()}).json["prediction"] == wanted[0]
    assert shared.post(at, x[0].tolist()).json["prediction"] == wanted[0]
    assert [row["prediction"] for row in shared.post(at, x.tolist()).json["predictions"]] == wanted
    several = packaged("several").rows(2)
    one = {name: column[0].tolist() for name, column in several.items()}
    assert shared.post("/models/several/predict", one).json["place"] in (0, 1, 2)
    assert len(shared.post("/models/several/predict", [one, one]).json["predictions"]) == 2


@pytest.mark.parametrize(("kind", "body", "word"), [
    ("images", {"x": [[1, 2], [3]]}, "x"), ("images", {"x": [1, 2]}, "x"), ("images", {"x": "a"}, "x"),
    ("images", {"y": 1}, "x"),
    ("images", {"x": np.full((8, 8, 3), 300).tolist()}, "300"), ("images", {"x": np.full((8, 8, 3), 0.5).tolist()}, "x"),
    ("chars", {"text": 3}, "token"), ("chars", {"text": ["to be", "to"]}, "length"), ("chars", {"text": "to be " * 9}, "8"),
    ("several", {"x": [1, 2, 3, 4, 5]}, "kind"), ("sequences", {"x": []}, "token"), ("sequences", {"x": [1.5]}, "token"),
])  # fmt: skip
def test_wrong_arrays_and_texts(shared: Front, kind: str, body: Any, word: str) -> None:
    answer = shared.post(f"/models/{kind}/predict", body)
    assert answer.status == 400 and word in answer.error


def test_predict_with_several_models_lists_them(shared: Front) -> None:
    answer = shared.post("/predict", {})
    assert answer.status == 404 and all(kind in answer.error for kind in KINDS)
    assert "photos" in shared.post("/models/photo/predict", {}).error


def test_many_rows_do_not_keep_others_waiting(shared: Front, packaged: Any) -> None:
    body = json.dumps(rows_of(packaged, 3) * 1000).encode()
    with shared.connect() as wire:
        wire.sendall(request("POST", "/models/classes_table/predict", body, {"Content-Type": "application/json"}))
        assert shared.get("/v2/health/live").status == 200
        assert len(Reader(wire).answer().json["predictions"]) == 3000


def test_the_description_fits_what_is_served(shared: Front, packaged: Any) -> None:
    page = shared.get("/openapi.json").json
    assert page["openapi"] == "3.1.0" and f"/models/{KINDS[0]}/predict" in page["paths"] and "/predict" not in page["paths"]
    identities = [call["operationId"] for path in page["paths"].values() for call in path.values()]
    assert len(set(identities)) == len(identities)
    for place, kind in enumerate(KINDS):
        row, answer = (page["components"]["schemas"][f"Model{place}{part}"] for part in ("Row", "Answer"))
        assert row["required"] == [one.name for one in packaged(kind).package().fitted.host.inputs]
        outputs = [one["name"] for one in shared.get(f"/v2/models/{kind}").json["outputs"]]
        assert list(answer["properties"]) == outputs
    named = {part for path in page["paths"].values() for part in str(path).split("'") if part.startswith("#/")}
    assert all(ref.split("/")[-1] in page["components"]["schemas"] for ref in named)
