"""Small models of every kind behind a real `flatout serve`, with requests and the answers that their packages give."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
from PIL import Image

import flatout as fo
from flatout.packaging.export import export
from flatout.packaging.package import open_package

LIMIT_S = 120.0
WINDOW, SIDE, ROWS = 8, 16, 16
_WORDS = "to be or not to be that is the question "


@dataclass(frozen=True)
class Question:
    """`right` are the expected answers by version; `kind` says how the body is written."""

    model: str
    kind: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    right: Mapping[str, Any]

    def is_right(self, version: str, body: bytes) -> bool:
        return version in self.right and nearly(json.loads(body), self.right[version])


@dataclass(frozen=True)
class ServedModels:
    """`versions` of the table: the first one, and others with other answers for the same rows."""

    packages: Mapping[str, Path]
    versions: tuple[Path, ...]
    photos: tuple[bytes, ...]
    questions: tuple[Question, ...]


def nearly(found: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping):
        return isinstance(found, dict) and all(name in found and nearly(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(nearly, found, expected))
    if isinstance(expected, float):
        return isinstance(found, int | float) and abs(found - expected) <= 1e-4 * max(1.0, abs(expected))
    return bool(found == expected)


def made_models(folder: Path, versions: int = 1) -> ServedModels:
    random = np.random.default_rng(0)
    tables = tuple(_table(folder, number, random) for number in range(versions))
    packages = {"table": tables[0]}
    x = random.normal(size=(24, 5)).astype(np.float32)
    packages["arrays"] = _package(folder, "arrays", fo.data.arrays(x, np.arange(24) % 3), {"mlp": {"hidden": [8]}})
    text = folder / "words.txt"
    text.write_text(_WORDS * 40)
    tiny = {"gpt": {"layers": 1, "heads": 1, "width": 8}}
    packages["text"] = _package(folder, "text", fo.data.text(str(text), window=WINDOW), tiny, "next_token")
    photos = _photos(folder / "photos", random)
    images = fo.data.images(str(folder / "photos"), size=SIDE)
    packages["photos"] = _package(folder, "photos", images, {"convnet": {"channels": [4], "hidden": 8}})
    people = _people(ROWS)
    windows = [(_WORDS * 9)[place * WINDOW : (place + 1) * WINDOW] for place in range(ROWS)]
    questions = (
        *_table_questions(people, {str(number + 1): _answers(one, people) for number, one in enumerate(tables)}),
        *_array_questions(x[:ROWS], _answers(packages["arrays"], {"x": x[:ROWS]})),
        *_text_questions(windows, _answers(packages["text"], windows)),
        *_photo_questions(photos, _answers(packages["photos"], list(photos))),
    )
    return ServedModels(packages, tables, photos, questions)


def _people(rows: int) -> dict[str, list[Any]]:
    random = np.random.default_rng(1)
    jobs = random.choice(["cook", "clerk", "nurse"], rows).tolist()
    ages = [None if row % 7 == 3 else float(age) for row, age in enumerate(random.integers(20, 70, rows))]
    return {"age": ages, "job": jobs, "code": random.integers(0, 4, rows).tolist()}


def _table(folder: Path, number: int, random: np.random.Generator) -> Path:
    people = _people(60)
    file = folder / f"people{number}.parquet"
    moods = random.choice(["good", "bad", "so so"], 60).tolist()
    parquet.write_table(pa.table({**people, "mood": moods}), file)
    return _package(folder, f"table{number}", {"table": str(file), "label": "mood"}, {"mlp": {"hidden": [8]}}, lr=0.1)


def _photos(folder: Path, random: np.random.Generator) -> tuple[bytes, ...]:
    for place in range(ROWS):
        below = folder / "ab"[place % 2]
        below.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (20 + place, 40 - place, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(below / f"{place:02}.{('jpeg', 'png', 'webp')[place % 3]}")
    return tuple(path.read_bytes() for path in sorted(folder.glob("*/*")))


def _package(folder: Path, name: str, data: Any, model: Any, objective: str = "classify", lr: float = 1e-2) -> Path:
    recipe = fo.Recipe(data=data, model=model, objective=objective, batch=4, lr=lr, budget="5 steps", evaluate=None,
                       settings={"device": "cpu"})  # fmt: skip
    run = fo.run(recipe, runs=folder / "runs" / name, cache=None, planning="off")
    return export(run, folder / f"package-{name}").package.path


def _answers(package: Path, rows: Any) -> list[dict[str, Any]]:
    found = open_package(package).predict(rows)
    columns = {name: column.tolist() if not isinstance(column, list) else column for name, column in found.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _table_questions(people: dict[str, list[Any]], right: Mapping[str, list[dict[str, Any]]]) -> list[Question]:
    found = []
    for place in range(ROWS):
        row = {name: column[place] for name, column in people.items()}
        of_versions = {version: answers[place] for version, answers in right.items()}
        found.append(_json_question("table", row, of_versions))
        if row["age"] is not None:
            inputs = [_input("age", "FP64", [1], [row["age"]]), _input("job", "BYTES", [1], [row["job"]]),
                      _input("code", "FP64" if isinstance(row["code"], float) else "INT64", [1], [row["code"]])]  # fmt: skip
            found.append(_oip_question("table", inputs, {version: _as_columns([one]) for version, one in of_versions.items()}))
    lines = [f"{'' if age is None else age},{job},{code}" for age, job, code in zip(*people.values(), strict=True)]
    every = {version: {"predictions": answers} for version, answers in right.items()}
    headers = {"Content-Type": "text/csv", "Accept": "application/json"}
    body = "\n".join(["age,job,code", *lines]).encode()
    return [*found, Question("table", "csv", "/models/table/predict", headers, body, every)]


def _array_questions(x: np.ndarray[Any, Any], right: list[dict[str, Any]]) -> list[Question]:
    found = []
    for place in range(ROWS):
        found.append(_json_question("arrays", {"x": x[place].tolist()}, {"1": right[place]}))
        columns = {"1": _as_columns([right[place]])}
        found.append(_oip_question("arrays", [_input("x", "FP32", [1, 5], x[place].tolist())], columns))
        found.append(_binary_question("arrays", "x", "FP32", [1, 5], x[place].tobytes(), columns))
    return found


def _text_questions(windows: list[str], right: list[dict[str, Any]]) -> list[Question]:
    found = []
    for text, answer in zip(windows, right, strict=True):
        path, headers = "/models/text/predict", {"Content-Type": "text/plain"}
        found.append(Question("text", "plain", path, headers, text.encode(), {"1": answer}))
    return found


def _photo_questions(photos: tuple[bytes, ...], right: list[dict[str, Any]]) -> list[Question]:
    found = []
    for photo, answer in zip(photos, right, strict=True):
        kind = Image.open(io.BytesIO(photo)).format
        headers = {"Content-Type": f"image/{str(kind).lower()}"}
        found.append(Question("photos", "photo", "/models/photos/predict", headers, photo, {"1": answer}))
        content = struct.pack("<I", len(photo)) + photo
        found.append(_binary_question("photos", "photo", "BYTES", [1], content, {"1": _as_columns([answer])}))
    return found


def _json_question(model: str, row: Any, right: Mapping[str, Any]) -> Question:
    headers = {"Content-Type": "application/json"}
    return Question(model, "json", f"/models/{model}/predict", headers, json.dumps(row).encode(), right)


def _oip_question(model: str, inputs: list[dict[str, Any]], right: Mapping[str, Any]) -> Question:
    headers = {"Content-Type": "application/json"}
    return Question(model, "oip", f"/v2/models/{model}/infer", headers, json.dumps({"inputs": inputs}).encode(), right)


def _binary_question(
    model: str, name: str, datatype: str, shape: list[int], content: bytes, right: Mapping[str, Any]
) -> Question:
    tensor = {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(content)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": False}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Question(model, "binary", f"/v2/models/{model}/infer", headers, head + content, right)


def _input(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def _as_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Flat, as the protocol has them."""
    return {name: np.asarray([row[name] for row in rows], dtype=object).ravel().tolist() for name in rows[0]}


def oip_columns(body: bytes) -> dict[str, list[Any]]:
    return {output["name"]: output["data"] for output in json.loads(body)["outputs"]}


def is_right(question: Question, status: int, version: str, body: bytes) -> bool:
    if status != 200:
        return False
    if question.kind in ("oip", "binary"):
        return version in question.right and nearly(oip_columns(body), question.right[version])
    return question.is_right(version, body)


class ServedProcess:
    """`python -m flatout serve` with these models."""

    def __init__(self, folder: Path, packages: Mapping[str, Path], *given: str) -> None:
        self._err = folder / "server.err"
        named = [f"{name}={path}" for name, path in packages.items()]
        command = [sys.executable, "-m", "flatout", "serve", *named, "--port", "0", *given]
        with self._err.open("wb") as err:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r":(\d+)$", line.strip())
        if found is None:
            raise SystemExit(f"the server did not start: {self.said()}")
        self.port, self.pid = int(found[1]), self._process.pid

    def said(self) -> str:
        return self._err.read_text(errors="replace")

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(LIMIT_S)
        finally:
            self._process.kill()

    def roles(self) -> dict[int, str]:
        """The processes that run now: supervisor, template, and the fronts and executors below it."""
        found = {self.pid: "supervisor"}
        with suppress(psutil.Error):
            for template in psutil.Process(self.pid).children():
                found[template.pid] = "template"
                for child in template.children():
                    with suppress(psutil.Error):
                        listens = any(one.status == psutil.CONN_LISTEN for one in child.net_connections("tcp"))
                        found[child.pid] = "front" if listens else "executor"
        return found

    def of(self, role: str) -> list[int]:
        return [pid for pid, its in self.roles().items() if its == role]

    def post(self, path: str, body: bytes = b"{}", headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("POST", path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def quiet() -> None:
    """One thread for each process: the server and its clients share the machine."""
    os.environ["OMP_NUM_THREADS"] = "1"
    time.tzset()
