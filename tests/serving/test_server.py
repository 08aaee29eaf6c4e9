"""A server as `flatout serve` starts it: what it answers, what it shows about itself, and mistakes in its arguments."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreters import run_forked
from prometheus_client.parser import text_string_to_metric_families
from served_rows import table_requests
from servers import Crowd, RunningServer, nearly
from tritonclient import http as triton

PREDICT = {"Content-Type": "application/json"}
HOOKS = """
import time

def older(columns, headers):
    if headers.get("x-fail"):
        raise ValueError("no such fashion")
    if headers.get("x-hang"):
        time.sleep(3600)
    return {**columns, "age": [None if age is None else age + 1 for age in columns["age"]]}

def shouting(columns, headers):
    return {**columns, "class": [one.upper() for one in columns["class"]]}
"""


@pytest.fixture(scope="module")
def server(packaged: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With a table and photos that the executor decodes, and two fronts. Tests must leave it as it is."""
    models = f"people={packaged('classes_table').path}", f"pictures={packaged('photos').path}"
    folder = tmp_path_factory.mktemp("server")
    code = "from flatout.serving import supervisor; supervisor._EXPLAINED_LOOKS = 2"
    with RunningServer(
        *models,
        "--workers",
        2,
        "--photos-on",
        "device",
        "--access-log",
        folder / "access.log",
        "--explain",
        code=code,
        cwd=folder,
    ) as running:
        yield running


def test_rows_are_answered_as_the_package_predicts_them(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    for row in table_requests(packaged("classes_table"), "people"):
        answer = server.post(row.path, row.body, headers=PREDICT)
        assert answer.status == 200 and row.is_right(answer), answer
    photos = packaged("photos")
    wanted = photos.package().predict(photos.rows(3))
    for place, file in enumerate(photos.rows(3)):
        answer = server.post("/models/pictures/predict", file, headers={"Content-Type": "application/octet-stream"})
        assert answer.json["class"] == wanted["class"][place], answer
    assert "pictures: photos are decoded by the process of the model" in server.said
    damaged = bytearray(photos.rows(1)[0])
    damaged[-40:-2] = bytes(38)
    both = [server.post("/models/pictures/predict", file, headers={"Content-Type": "image/jpeg"})
            for file in (bytes(damaged), bytes(damaged[:-30]))]  # fmt: skip
    assert [one.status for one in both] == [400, 400] and "row 0: the photo can't be decoded" in both[0].error
    refused = server.post("/predict", {"age": 1})
    assert refused.status == 404 and "/models/NAME/predict with one of people, pictures" in refused.error


def test_an_unmodified_triton_client(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    exported = packaged("photos")
    files = exported.rows(4)
    wanted = exported.package().predict(files)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("people")
        assert {model["name"] for model in client.get_model_repository_index()} == {"people", "pictures"}
        (about,) = client.get_model_metadata("pictures")["inputs"]
        given = triton.InferInput(about["name"], [4], "BYTES")
        given.set_data_from_numpy(np.array(files, dtype=object), binary_data=True)
        found = client.infer("pictures", [given])
        np.testing.assert_array_equal(found.as_numpy("prediction"), wanted["prediction"].numpy())
        assert [one.decode() for one in found.as_numpy("class")] == list(wanted["class"])
        counted = client.get_inference_statistics("pictures")["model_stats"][0]
        assert counted["inference_stats"]["success"]["count"] >= 1


def test_metrics_count_what_was_answered(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    def counted() -> dict[tuple[str, str, str], float]:
        said = server.get("/metrics")
        families = list(text_string_to_metric_families(said.body.decode()))
        assert len(families) > 10
        return {
            (sample.name, sample.labels["model"], sample.labels.get("outcome", "")): sample.value
            for family in families
            for sample in family.samples
            if "part" not in sample.labels and "model" in sample.labels and "reason" not in sample.labels
        }

    before = counted()
    rows = table_requests(packaged("classes_table"), "people")
    for place in range(30):
        assert server.post("/models/people/predict", rows[place % len(rows)].body).status == 200
    assert server.post("/models/people/predict", b"[1, 2").status == 400
    more = {("flatout_requests_total", "people", "answered"): 30, ("flatout_requests_total", "people", "refused"): 1,
            ("nv_inference_request_success_total", "people", ""): 30,
            ("nv_inference_count_total", "people", ""): 30}  # fmt: skip

    def grown() -> dict[tuple[str, str, str], float]:
        after = counted()
        return {key: after[key] - before[key] for key in more}

    server.until(lambda: grown() == more, f"count {more}, but {grown()}")


def test_the_access_log_has_a_line_for_each_request(server: RunningServer) -> None:
    log = server.folder / "access.log"
    assert server.get("/v2/models/people?asked=by-a-test").status == 200
    assert server.post("/models/nobody/predict").status == 404

    def line(part: str) -> Any:
        return next((json.loads(one) for one in log.read_text().splitlines() if part in one), None)

    server.until(lambda: line("by-a-test") and line("nobody"), "write its access log")
    assert line("nobody")["status"] == 404 and line("nobody")["method"] == "POST"
    assert server.post("/models/people/predict", b"{}").status == 400
    server.until(lambda: line('"/models/people/predict", "status": 400'), "write the refused request")


def test_what_it_shows_about_itself(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    page = server.get("/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html") and b"<html" in page.body
    live = server.get("/live.json").json
    assert set(live["models"]) == {"people", "pictures"} and live["models"]["people"]["sample"]
    tried = server.post("/models/people/predict", live["models"]["people"]["sample"])  # as the page does
    assert tried.status == 200, tried
    with Crowd(server, table_requests(packaged("classes_table"), "people"), threads=2) as crowd:
        server.until(lambda: b"compute" in server.get("/explain").body, "explain its times")
        server.until(lambda: "of the mean" in server.said, "print its explanation")
    assert not crowd.wrong and not crowd.lost
    assert server.get("/explain.json").json
    assert "/models/people/predict" in server.get("/openapi.json").json["paths"]


def test_hooks_change_rows_and_answers(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "my_hooks.py").write_text(HOOKS)
    exported = packaged("classes_table")
    code = "from flatout.serving.front import limits; limits.Limits.__init__.__defaults__ = "
    code += "tuple(1.0 if one == 10.0 else one for one in limits.Limits.__init__.__defaults__)"  # seconds for a hook
    hooks = "--before", "my_hooks:older", "--after", "my_hooks:shouting", "--workers", 1
    with RunningServer(exported.path, *hooks, cwd=tmp_path, code=code) as server:
        rows = exported.rows(2)
        rows["age"] = [None if age is None else age + 1 for age in rows["age"]]
        wanted = exported.package().predict(rows)
        for place, row in enumerate(table_requests(exported, "", 2)):
            answer = server.post("/predict", row.body)
            assert answer.json["class"] == wanted["class"][place].upper(), answer
            assert nearly(answer.json["probability"], float(wanted["probability"][place]))
        body = table_requests(exported, "", 1)[0].body
        failed = server.post("/predict", body, headers={"x-fail": "1"})
        assert failed.status == 500 and "the hook 'before' failed: ValueError: no such fashion" in failed.error
        with closing(server.connect()) as hanging:
            hanging.request("POST", "/predict", body, {"x-hang": "1"})
            for _ in range(20):
                assert server.post("/predict", body).status == 200
            late = hanging.getresponse()
            assert late.status == 504 and b"the hook 'before' took longer than 1 s" in late.read()


def test_tls_and_token(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    certificate, key, token = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "token"
    make_certificate(certificate, key)
    token.write_text("open-sesame\n")
    exported = packaged("several")
    row = {name: column[0].tolist() for name, column in exported.rows(1).items()}
    given = "--tls-cert", certificate, "--tls-key", key, "--token-file", token, "--workers", 1
    with RunningServer(f"both={exported.path}", *given, cwd=tmp_path) as server:
        assert server.is_encrypted
        assert server.get("/v2/health/live").status == 200
        refused = server.post("/predict", row)
        assert refused.status == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert server.post("/predict", row, headers={"Authorization": "Bearer open-sesam"}).status == 401
        answer = server.post("/predict", row, headers={"Authorization": "Bearer open-sesame"})
        wanted = exported.package().predict(exported.rows(1))
        assert nearly(answer.json["scores"], wanted["scores"][0].tolist()), answer
        basic = base64.b64encode(b"me:open-sesame").decode()
        assert server.get("/metrics", headers={"Authorization": f"Basic {basic}"}).status == 401
        with socket.create_connection(("127.0.0.1", server.port)) as plain:  # no handshake
            plain.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            plain.settimeout(20)
            assert b"200" not in plain.recv(4096)
        assert server.get("/v2/health/live").status == 200


def make_certificate(certificate: Path, key: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-keyout", key, "-out", certificate]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


def test_mistakes_in_the_arguments(packaged: Callable[[str], Any], tmp_path: Path, server: RunningServer) -> None:
    package = str(packaged("several").path)
    (tmp_path / "words").write_text("two words")
    (tmp_path / "a_hook.py").write_text("def there(columns, headers):\n    return columns\n")
    cases: list[tuple[list[object], int, str]] = [
        ([package, "--slo", "fast"], 2, "fast"),
        ([package, "--workers", "two"], 2, "whole number or auto"),
        ([package, "--workers", "0"], 2, "1 to 64, got 0"),
        ([package, "--workers", "65"], 2, "1 to 64, got 65"),
        ([package, "--device", "abacus"], 2, "abacus"),
        (["nothing-here"], 1, "nothing-here"),
        ([package, "--before", "json"], 2, "module:function"),
        ([package, "--before", "no_such_module:f"], 2, "no module 'no_such_module'"),
        ([package, "--tls-cert", tmp_path / "words"], 2, "both --tls-cert and --tls-key"),
        ([package, "--tls-cert", tmp_path / "no.pem", "--tls-key", tmp_path / "no.pem"], 2, "no.pem"),
        ([package, "--tls-cert", tmp_path / "words", "--tls-key", tmp_path / "words"], 2, "can't be used"),
        ([package, "--token-file", tmp_path / "absent"], 2, "absent"),
        ([package, "--token-file", tmp_path / "words"], 2, "one word"),
        ([package, "--sample", "2"], 2, "0 to 1"),
        ([package, "--drain", "soon"], 2, "soon"),
        ([package, "--max-body", "much"], 2, "much"),
        ([f"a={package}", f"a={package}"], 2, "two models have the name 'a'"),
        ([f"a b={package}"], 2, "letters, digits"),
        ([package, "--port", server.port], 1, f"port {server.port}: Address already in use; --port"),
        ([package, "--canary", package], 2, "is the same package as the one that serves"),
        ([package, "--host", "no.such.host.invalid"], 1, "no address for 'no.such.host.invalid'"),
    ]
    for arguments, code, words in cases:
        ended = run_forked(["-m", "flatout", "serve", *map(str, arguments)], cwd=tmp_path)
        assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), (arguments, ended)
        assert words in ended.stderr, (arguments, ended.stderr)
    refused = RunningServer(package, "--before", "a_hook:absent", cwd=tmp_path)  # known only when it is imported
    assert refused.ended() == 2 and "a_hook has no function 'absent'" in refused.said and "Traceback" not in refused.said


def test_a_damaged_package_is_not_served(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    copy = packaged("several").copy(tmp_path / "copy")
    largest = max(copy.iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    ended = run_forked(["-m", "flatout", "serve", str(copy), "--port", "0"], cwd=tmp_path)
    assert ended.returncode == 1 and largest.name in ended.stderr and "Traceback" not in ended.stderr, ended
    assert not ended.stdout


def test_a_run_is_exported_once(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    exported = packaged("classes_table")
    (row,) = table_requests(exported, "", 1)
    with RunningServer(f"people={exported.run.path}", "--workers", 1, cwd=tmp_path) as server:
        answer = server.post(row.path, row.body)
        assert row.is_right(answer), answer
        assert "exporting" in server.said
    with RunningServer(f"people={exported.run.path}", "--workers", 1, cwd=tmp_path) as server:
        assert "exporting" not in server.said
