"""`flatout load` as people and programs use it: what is sent, when, what is printed, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_servers import OK, Asked, InferenceServer, Line, polite, serving

Measured = Callable[..., Any]
Command = Callable[..., tuple[int, str, str]]
SHORT = ("--rate", "400/s", "--for", "0.125 s", "--arrivals", "constant", "--warm-up", "0.025 s")
ALL = 50  # requests of SHORT, of which the first 10 are warm-up
TABLE = [
    {"name": "age", "datatype": "FP32", "shape": [-1, 1]},
    {"name": "job", "datatype": "BYTES", "shape": [-1, 1]},
    {"name": "count", "datatype": "INT64", "shape": [-1]},
    {"name": "photo", "datatype": "UINT8", "shape": [-1, 3, -1, 8]},
    {"name": "flag", "datatype": "BOOL", "shape": [2]},
]


# ---- what is sent ----


def test_a_row_goes_to_predict(measured: Measured) -> None:
    with serving(polite) as server:
        found = measured(server.url, *SHORT, "--row", '{"age": 39}', "--header", "Authorization: Bearer x")
        assert len(server.asked) == 1 + ALL, "one to look whether it is taken, then all that are scheduled"
        assert {(one.method, one.path, one.body) for one in server.asked} == {("POST", "/predict", b'{"age": 39}')}
        assert {one.headers["authorization"] for one in server.asked} == {"Bearer x"}
        assert {one.headers["content-type"] for one in server.asked} == {"application/json"}
    assert found["good"] == found["requests"] == ALL - 10 and found["warm_up_s"] == 0.025


def test_rows_of_files_in_turn(measured: Measured, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('age,job,city\n39,clerk,\n40.5,"a, b",Ulm\n')
    (tmp_path / "rows.jsonl").write_text('{"age": 1}\n\n{"age": 2}\n{"age": 3}\n')
    with serving(polite) as server:
        measured(f"{server.url}/other?x=1", *SHORT, "--rows", tmp_path / "rows.csv")
        bodies = [json.loads(one.body) for one in server.asked[1:]]
        assert {one.path for one in server.asked} == {"/other?x=1"}
        first, second = {"age": 39, "job": "clerk", "city": None}, {"age": 40.5, "job": "a, b", "city": "Ulm"}
        assert bodies.count(first) == bodies.count(second) == ALL // 2
        server.asked.clear()
        measured(server.url, *SHORT, "--rows", tmp_path / "rows.jsonl", "--processes", 2)
        assert {one.body for one in server.asked} == {b'{"age": 1}', b'{"age": 2}', b'{"age": 3}'}


def test_a_large_file_as_body(measured: Measured, tmp_path: Path) -> None:
    photo = os.urandom(3_000_000)
    (tmp_path / "photo.jpg").write_bytes(photo)
    with serving(polite) as server:
        found = measured(
            server.url, "--rate", "10/s", "--for", "0.5 s", "--arrivals", "constant", "--body", tmp_path / "photo.jpg"
        )
        assert all(one.body == photo and one.headers["content-type"] == "image/jpeg" for one in server.asked)
    assert found["good"] == found["requests"]


@pytest.mark.parametrize("extensions", [("binary_tensor_data",), ()], ids=["binary", "json"])
@pytest.mark.parametrize("has_index", [True, False], ids=["index", "list"])
def test_any_inference_server_says_itself_what_to_send(
    measured: Measured, extensions: tuple[str, ...], has_index: bool
) -> None:
    with serving(InferenceServer({"adult": TABLE}, extensions, has_index)) as server:
        found = measured(server.url, *SHORT, "--batch", 3)
        sent = [one for one in server.asked if one.path == "/v2/models/adult/infer"]
        assert ("inference-header-content-length" in sent[0].headers) == bool(extensions)
        assert len({one.body for one in sent}) > 4, "the values differ from request to request"
    assert found["statuses"] == {"200": ALL - 10}, "400 would say that a tensor is not as the metadata says"


def test_several_models_need_a_choice(command: Command, measured: Measured) -> None:
    with serving(InferenceServer({"adult": TABLE, "photos": TABLE[:1]})) as server:
        code, _, err = command(server.url, *SHORT)
        assert code == 2 and "adult" in err and "photos" in err and "--model" in err
        measured(server.url, *SHORT, "--model", "photos", "--json-tensors")
        assert json.loads(server.asked[-1].body)["inputs"][0]["shape"] == [1, 1]
        code, _, err = command(server.url, *SHORT, "--model", "none")
        assert code == 1 and "404" in err


def test_a_server_of_no_protocol_is_told_so(command: Command) -> None:
    with serving(InferenceServer({})) as server:
        code, _, err = command(server.url, *SHORT)
        assert code == 1 and "--model" in err
    with serving(polite) as server:
        code, _, err = command(server.url, *SHORT)
        assert code == 1 and "--row" in err


# ---- when it is sent ----


def test_latency_counts_from_the_scheduled_time(measured: Measured) -> None:
    """While a server stalls nobody asks in a closed loop, and one answer is slow. By schedule all that wait are slow."""

    async def stalls_once(asked: Asked, line: Line) -> None:
        if asked.number == 100:
            time.sleep(0.4)  # not asyncio: the whole server stands still
        line.say(OK)

    with serving(stalls_once) as server:
        found = measured(f"{server.url}/x", "--rate", "200/s", "--for", "1.2 s", "--arrivals", "constant", "--warm-up", "0.1 s")
    assert found["latency_ms"]["max"] > 300 and found["latency_ms"]["p90"] > 80
    with serving(stalls_once) as server:
        found = measured(f"{server.url}/x", "--closed", 1, "--for", "0.8 s", "--warm-up", "0.001 s")
    assert found["latency_ms"]["max"] > 300 > 80 > found["latency_ms"]["p90"] and found["offered_rate"] is None


def test_waiting_for_a_connection_counts(measured: Measured) -> None:
    async def slow(asked: Asked, line: Line) -> None:
        await asyncio.sleep(0.05)
        line.say(OK)

    with serving(slow) as server:
        found = measured(f"{server.url}/x", "--rate", "60/s", "--for", "0.5 s", "--connections", 1, "--arrivals", "constant")
        assert server.connections <= 3, "two of them are from before the run"
    # 60 a second at a server that makes 20 on one connection
    assert found["latency_ms"]["max"] > 300 and found["good"] == found["requests"] and found["achieved_rate"] < 30
    with serving(slow) as server:
        found = measured(f"{server.url}/x", "--rate", "60/s", "--for", "0.5 s", "--arrivals", "constant")
        assert server.connections > 3
    assert found["achieved_rate"] > 35


def test_recorded_arrivals(measured: Measured, tmp_path: Path, command: Command) -> None:
    (tmp_path / "times.txt").write_text("".join(f"{1_700_000_000 + at}\n" for at in (0.7, 0.0, 0.1, 0.1, 0.2)))
    with serving(polite) as server:
        found = measured(f"{server.url}/x", "--arrivals", tmp_path / "times.txt", "--warm-up", "0.05 s")
        assert len(server.asked) == 6
        assert found["requests"] == 4 and 0.6 < found["measured_s"] < 0.7
        (tmp_path / "times.txt").write_text("0.1\nsoon\n")
        code, _, err = command(f"{server.url}/x", "--arrivals", tmp_path / "times.txt")
    assert code == 2 and "'soon'" in err


def test_processes_share_the_schedule_and_lose_nothing(measured: Measured) -> None:
    with serving(polite) as server:
        found = measured(f"{server.url}/x", "--rate", "500/s", "--for", "0.5 s", "--processes", 3, "--seed", 7)
        again = measured(f"{server.url}/x", "--rate", "500/s", "--for", "0.5 s", "--processes", 1, "--seed", 7)
    assert found["generator"]["processes"] == 3
    assert found["requests"] == again["requests"] == found["good"], "the same arrivals, however many processes send them"
    assert sum(second["requests"] for second in found["seconds"]) == found["requests"]


# ---- what is said ----


def test_the_screen(command: Command) -> None:
    async def telling(asked: Asked, line: Line) -> None:
        numbers = b"X-Flatout-Queue-Ms: 1.5\r\nx-flatout-compute-ms: 0.25\r\nx-flatout-batch: 4\r\nx-flatout-reason: idle\r\n"
        line.say(OK.replace(b"Content-Length", numbers + b"Content-Length"))

    with serving(telling) as server:
        code, out, err = command(f"{server.url}/x", *SHORT, "--slo", "p90 9 s")
    assert code == 0, err
    for words in ("offered 400.0/s", "p99.9", "200: 40", "warm-up", "goal p90 9 s: held", "generator  ", "  #"):
        assert words in out, out
    assert "queue 1.5 ms, compute 0.25 ms, batch 4 rows" in out
    assert max(map(len, out.splitlines())) <= 128, out


def test_a_missed_goal_is_exit_code_1(command: Command) -> None:
    with serving(polite) as server:
        code, out, _ = command(f"{server.url}/x", *SHORT, "--slo", "p50 0.001 ms")
    assert code == 1 and "MISSED" in out


def test_a_refused_request_misses_the_goal_however_fast_it_was_refused(command: Command) -> None:
    async def refuses(asked: Asked, line: Line) -> None:
        line.say(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n" if asked.number % 4 == 1 else OK)

    with serving(refuses) as server:
        code, out, _ = command(f"{server.url}/x", *SHORT, "--slo", "p90 9 s", "--json")
    assert code == 1 and 0.7 < json.loads(out)["goal"]["share_within"] < 0.8


def test_the_generator_says_when_it_was_the_limit(measured: Measured) -> None:
    """Its process stands still for a while, as on a machine with too few cores. The server is not to blame."""

    def hold_up() -> None:
        children = [one for one in psutil.Process().children() if "flatout.loadtest.sending_process" in one.cmdline()]
        for child in children:
            child.suspend()
        time.sleep(0.4)
        for child in children:
            child.resume()

    with serving(polite) as server:
        timer = threading.Timer(0.8, hold_up)
        timer.start()
        found = measured(f"{server.url}/x", "--rate", "200/s", "--for", "1.2 s")
        timer.join()
    assert found["generator"]["was_the_limit"] and found["generator"]["why"]
    assert found["generator"]["lag_ms"]["p99"] > 100 and found["latency_ms"]["p99"] > 100, "late requests are late answers"


def test_a_page_of_the_result(command: Command, tmp_path: Path) -> None:
    page = tmp_path / "load.html"
    with serving(polite) as server:
        code, printed, _ = command(server.url, *SHORT, "--slo", "p99 5 s", "--html", page, "--row", '{"a": "<img>"}')
        assert code == 0 and printed.startswith("offered") and "held" in page.read_text()
        written = page.read_text()
        assert written.count("<figure>") == 1 and "goal p99 5 s" in written and server.url in written
        goal = ("--find", "--slo", "p50 0.001 ms", "--rate", "50/s", "--for", "0.1 s")
        code, _, said = command(f"{server.url}/x", *goal, "--html", page)
        assert code == 1, said
        assert page.read_text().count("<figure>") == 1 and "Rates that were tried" in page.read_text()
        assert command(server.url, *SHORT, "--html", tmp_path)[0] == 2


# ---- the highest rate ----


def test_finding_the_highest_rate(command: Command) -> None:
    gate = asyncio.Semaphore(1)

    async def one_at_a_time(asked: Asked, line: Line) -> None:
        """500 a second at most. The goal lets half of all be refused."""
        if asked.number % 8 == 1:
            line.say(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            return
        async with gate:
            await asyncio.sleep(0.002)
        line.say(OK)

    with serving(one_at_a_time) as server:
        goal = ("--find", "--slo", "p50 50 ms")
        code, out, err = command(f"{server.url}/x", *goal, "--rate", "300/s", "--for", "0.2 s", "--json")
    assert code == 0, err
    found = json.loads(out)
    rates = [step["rate"] for step in found["steps"]]
    assert rates[0] == 300 and found["highest_rate"] < found["lowest_missed_rate"] <= 1600, found["highest_rate"]
    assert {step["held"] for step in found["steps"]} == {True, False} and found["confirmed"] >= 1
    assert all(step["why"] for step in found["steps"] if not step["held"])
    assert any(step["held"] and step["statuses"].get("503") for step in found["steps"])


def test_no_rate_holds(command: Command) -> None:
    async def slow(asked: Asked, line: Line) -> None:
        await asyncio.sleep(0.03)
        line.say(OK)

    with serving(slow) as server:
        goal = ("--find", "--slo", "p50 1 ms", "--rate", "2/s", "--for", "0.4 s")
        code, out, _ = command(f"{server.url}/x", *goal, "--arrivals", "constant")
    assert code == 1 and "no rate held p50 1 ms" in out


def test_no_rate_holds_if_all_are_refused(command: Command) -> None:
    async def refuses(asked: Asked, line: Line) -> None:
        line.say(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    with serving(refuses) as server:
        goal = ("--find", "--slo", "p50 1 s", "--rate", "2/s", "--for", "0.4 s")
        code, out, _ = command(f"{server.url}/x", *goal, "--arrivals", "constant")
    assert code == 1 and "requests got no good answer" in out, out


# ---- mistakes ----


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--rate"),
        (("--rate", "fast"), "--rate"),
        (("--rate", "0/s"), "--rate"),
        (("--rate", "9/s", "--for", "soon"), "--for"),
        (("--rate", "1000k/s", "--for", "10 min"), "--for"),
        (("--rate", "9/s", "--slo", "50 ms"), "--slo"),
        (("--rate", "9/s", "--warm-up", "20 s", "--row", "{}"), "--warm-up"),
        (("--find",), "--slo"),
        (("--closed", "2", "--rate", "9/s"), "--closed"),
        (("--rate", "9/s", "--arrivals", "recorded"), "--arrivals"),
        (("--rate", "9/s", "--row", "age=3"), "--row"),
        (("--rate", "9/s", "--row", "{}", "--tensors"), "--row"),
        (("--rate", "9/s", "--rows", "rows.xls"), "--rows"),
        (("--rate", "9/s", "--rows", "absent.csv"), "absent.csv"),
        (("--rate", "9/s", "--body", "absent.jpg"), "absent.jpg"),
        (("--rate", "9/s", "--type", "image/png"), "--type"),
        (("--rate", "9/s", "--row", "{}", "--header", "nothing"), "--header"),
        (("--rate", "9/s", "--row", "{}", "--header", "Content-Length: 3"), "Content-Length"),
        (("--rate", "9/s", "--row", "{}", "--processes", "many"), "--processes"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], named: str, command: Command) -> None:
    with serving(polite) as server:
        code, out, err = command(server.url, *arguments)
    assert code == 2 and out == "" and named in err and "Traceback" not in err


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://me:secret@x", "http://x/a b"])
def test_urls_that_are_none(url: str, command: Command) -> None:
    code, _, err = command(url, "--rate", "9/s")
    assert code == 2 and "http://127.0.0.1:8000" in err


# ---- as a program of its own ----


def test_ctrl_c_prints_what_there_is_and_leaves_no_process() -> None:
    with serving(polite) as server:
        program = [sys.executable, "-m", "flatout", "load", f"{server.url}/x", "--rate", "50/s", "--for", "60 s", "--json"]
        running = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(server.asked) < 40:
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
        came = len(server.asked)
        time.sleep(0.1)
        assert len(server.asked) == came, "nobody sends any more"
    found = json.loads(out)
    assert running.returncode == 130 and found["interrupted"] and "Traceback" not in err
    assert 10 <= found["good"] <= came and found["latency_ms"]["p50"] > 0


def test_a_command_that_is_killed_takes_its_processes_along() -> None:
    with serving(polite) as server:
        program = [sys.executable, "-m", "flatout", "load", f"{server.url}/x", "--rate", "50/s", "--for", "60 s"]
        running = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(server.asked) < 10:
            assert running.poll() is None
            time.sleep(0.02)
        running.kill()
        running.wait()
        time.sleep(0.3)
        came = len(server.asked)
        time.sleep(0.3)
        assert len(server.asked) == came


def test_neither_the_help_nor_a_run_loads_torch() -> None:
    program = (
        "import sys\nsys.argv = ['flatout', 'load', {0}]\nfrom flatout.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    print('loaded', end.code or 0, *({'torch', 'uvloop'} & set(sys.modules)))"
    )
    with serving(polite) as server:
        for arguments, loaded in (
            ("'--help'", "loaded 0\n"),
            (f"'{server.url}/x', '--closed', '1', '--for', '0.1 s'", "loaded 0 uvloop\n"),
        ):
            run = subprocess.run(
                [sys.executable, "-c", program.replace("{0}", arguments)], capture_output=True, text=True, check=True
            )
            assert run.stdout.endswith(loaded), run.stdout
