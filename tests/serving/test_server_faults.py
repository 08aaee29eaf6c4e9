"""A server under load while its processes are killed, stopped and replaced: every request is answered, and rightly."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served_rows import table_requests
from servers import LIMIT_S, Crowd, RunningServer, alive, children, is_closed, stopped

QUICK_HANG = """
from dataclasses import replace
from flatout.serving import serve
first = serve.serve
serve.serve = lambda models, options, **more: first(models, replace(options, hang_s=2.0), **more)
"""


@pytest.fixture(scope="module")
def folder(packaged: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that tests replace."""
    made = tmp_path_factory.mktemp("served") / "people"
    return Path(packaged("classes_table").copy(made))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    """Tests leave it whole: killed processes are replaced."""
    with RunningServer(f"people={folder}", "--workers", 2, code=QUICK_HANG) as running:
        yield running


def whole(server: RunningServer) -> bool:
    return len(server.fronts()) == 2 and len(server.executors()) == 1


def test_killed_executors_lose_no_request(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    with Crowd(server, table_requests(packaged("classes_table"), "people")) as crowd:
        for _ in range(2):
            (executor,) = server.executors()
            os.kill(executor, signal.SIGKILL)
            server.until(lambda: whole(server) and not alive(executor), "replace the executor")  # noqa: B023
            crowd.some_more()
    assert not crowd.wrong and not crowd.lost
    assert "the process of the models was killed by SIGKILL; a new one is started" in server.said


def test_a_killed_front_is_replaced(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    with Crowd(server, table_requests(packaged("classes_table"), "people"), again=True) as crowd:
        killed = server.fronts()[0]
        os.kill(killed, signal.SIGKILL)
        crowd.some_more()
        server.until(lambda: whole(server) and killed not in server.fronts(), "replace the front")
        crowd.some_more()
    assert not crowd.wrong
    assert "a process for connections was killed by SIGKILL" in server.said


def test_hanging_processes_are_replaced(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    with Crowd(server, table_requests(packaged("classes_table"), "people"), again=True) as crowd:
        (executor,), front = server.executors(), server.fronts()[0]
        with stopped(executor), stopped(front):
            server.until(lambda: not alive(executor) and not alive(front), "end what hangs")
        server.until(lambda: whole(server), "replace them")
        crowd.some_more()
    assert not crowd.wrong
    assert "has not answered for 2 s and is ended" in server.said


def test_a_signal_to_all_processes_does_not_end_those_below(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    before = server.below()
    for pid in before:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    (row,) = table_requests(packaged("classes_table"), "people", 1)
    assert row.is_right(server.post(row.path, row.body))
    assert server.below() == before


def test_a_stopped_supervisor_comes_back(server: RunningServer) -> None:
    before = server.below()
    with stopped(server.pid):
        time.sleep(2.5)  # longer than others may hang
    assert server.get("/v2/health/ready").status == 200
    time.sleep(0.3)
    assert server.below() == before


def replace_package(folder: Path, new: Path, in_place: bool) -> None:
    if in_place:  # as cp does: the same files with other content
        for file in folder.iterdir():
            file.unlink() if not (new / file.name).exists() else None
        for file in new.iterdir():
            shutil.copyfile(file, folder / file.name)
    else:
        shutil.rmtree(folder)
        shutil.copytree(new, folder)


@pytest.mark.parametrize("in_place", [False, True])
def test_new_versions_under_load(server: RunningServer, folder: Path, packaged: Callable[[str], Any], in_place: bool) -> None:
    old, new = packaged("classes_table"), packaged("binary_table")
    if in_place:
        old, new = new, old
    now = int(server.post("/v2/repository/index").json[0]["version"])
    rows = table_requests(packaged("classes_table"), "people", others={str(now): old, str(now + 1): new})
    with Crowd(server, rows) as crowd:
        crowd.some_more()
        replace_package(folder, new.path, in_place)
        crowd.some_more()
        os.kill(server.executors()[0], signal.SIGKILL)  # its successor has the old version, though the folder has the new
        crowd.some_more()
        loaded = server.post("/v2/repository/models/people/load")
        assert loaded.status == 200, loaded
        crowd.some_more()
    assert not crowd.wrong and not crowd.lost
    assert set(crowd.versions) == {str(now), str(now + 1)}
    with Crowd(server, rows) as crowd:
        crowd.some_more()
    assert set(crowd.versions) == {str(now + 1)} and not crowd.wrong
    server.until(lambda: whole(server), "end the old executor")


def test_the_executor_ends_while_the_next_version_is_loaded(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    with Crowd(server, table_requests(packaged("classes_table"), "people")) as crowd:
        (executor,) = server.executors()
        with ThreadPoolExecutor(1) as asking:
            loading = asking.submit(server.post, "/v2/repository/models/people/load")
            server.until(lambda: len(server.executors()) > 1, "start the next executor")
            os.kill(executor, signal.SIGKILL)
            assert loading.result().status == 200
        crowd.some_more()
    assert not crowd.wrong and not crowd.lost
    server.until(lambda: whole(server), "end the old executor")


def test_a_damaged_version_is_not_loaded(server: RunningServer, folder: Path, packaged: Callable[[str], Any]) -> None:
    largest = max(folder.iterdir(), key=lambda file: file.stat().st_size)
    content = largest.read_bytes()
    rows = table_requests(packaged("classes_table"), "people")
    with Crowd(server, rows) as crowd:
        largest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        refused = server.post("/v2/repository/models/people/load")
        assert refused.status == 400 and largest.name in refused.error and str(folder) in refused.error, refused
        crowd.some_more()
        shutil.move(folder, folder.with_name("away"))
        refused = server.post("/v2/repository/models/people/load")
        assert refused.status == 400 and str(folder) in refused.error, refused
        crowd.some_more()
        shutil.move(folder.with_name("away"), folder)
    largest.write_bytes(content)
    assert not crowd.wrong and not crowd.lost
    assert server.post("/v2/repository/models/nobody/load").status == 400


def test_unload_and_load(server: RunningServer, packaged: Callable[[str], Any]) -> None:
    (row,) = table_requests(packaged("classes_table"), "people", 1)
    assert server.post("/v2/repository/models/people/unload").status == 200
    assert server.post(row.path, row.body).status == 404
    assert server.get("/metrics").status == server.get("/explain").status == server.get("/live.json").status == 200
    assert server.post("/v2/repository/models/people/load").status == 200
    assert row.is_right(server.post(row.path, row.body))
    server.until(lambda: whole(server), "end the old executors")


def test_several_executors_share_the_requests(packaged: Callable[[str], Any], folder: Path) -> None:
    with RunningServer(f"people={folder}", "--workers", 1, "--executors", 2) as server:
        with Crowd(server, table_requests(packaged("classes_table"), "people")) as crowd:
            crowd.some_more()
            before = server.executors()
            assert len(before) == 2 and all(cpu_s(pid) > 0 for pid in before)
            os.kill(before[0], signal.SIGKILL)
            crowd.some_more()  # the other has them all now
            server.until(lambda: len(server.executors()) == 2 and not alive(before[0]), "replace the executor")
            assert server.post("/v2/repository/models/people/load").status == 200
            server.until(lambda: len(server.executors()) == 2 and not alive(before[1]), "end the old executors")
            crowd.some_more()
        assert not crowd.wrong and not crowd.lost


def test_too_many_connections_for_its_files(packaged: Callable[[str], Any], folder: Path) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))"
    with RunningServer(f"people={folder}", "--workers", 1, code=code) as server:
        (front,) = server.fronts()
        many = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(150)]
        before_s = cpu_s(front)
        time.sleep(1.0)
        assert cpu_s(front) - before_s < 0.5  # it waits, rather than trying again and again
        for one in many:
            one.close()
        (row,) = table_requests(packaged("classes_table"), "people", 1)
        assert row.is_right(server.post(row.path, row.body))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_sigterm_under_load_answers_what_was_accepted(packaged: Callable[[str], Any], folder: Path) -> None:
    with RunningServer(f"people={folder}", "--workers", 2) as server:
        rows = table_requests(packaged("classes_table"), "people")
        below, port = server.below(), server.port
        slow = socket.create_connection(("127.0.0.1", port))
        with Crowd(server, rows) as crowd, slow:
            crowd.some_more()
            head = b"POST /models/people/predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(rows[0].body)
            slow.sendall(head + rows[0].body[:10])
            server.until(lambda: crowd.answered > 120, "answer")
            os.kill(server.pid, signal.SIGTERM)
            os.kill(server.executors()[0], signal.SIGKILL)  # and now of all times
            server.until(lambda: is_closed(port), "close its port")
            slow.sendall(rows[0].body[10:])
            slow.settimeout(LIMIT_S)
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
            assert server.ended() == 143
        assert not crowd.wrong, crowd.wrong
        assert crowd.lost <= crowd.threads  # a request that is sent while its idle connection is closed
        server.until(lambda: not any(map(alive, below)), "end all its processes")
        assert is_closed(port) and "Traceback" not in server.said
        assert not list(server.temporary.iterdir())


def test_a_second_signal_ends_at_once(folder: Path) -> None:
    with RunningServer(f"people={folder}", "--workers", 1) as server:
        below = server.below()
        with socket.create_connection(("127.0.0.1", server.port)) as never:
            never.sendall(b"POST /models/people/predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
            server.until(lambda: server.get("/v2/health/live").status == 200, "answer")
            os.kill(server.pid, signal.SIGINT)
            server.until(lambda: "SIGINT: answering" in server.said, "say that it stops")
            os.kill(server.pid, signal.SIGINT)
            assert server.ended() == 130
        server.until(lambda: not any(map(alive, below)), "end all its processes")
        assert not list(server.temporary.iterdir())


def test_it_ends_in_order_if_it_can_start_no_process(packaged: Callable[[str], Any], folder: Path) -> None:
    with RunningServer(f"people={folder}", "--workers", 1) as server:
        below = server.below()
        with Crowd(server, table_requests(packaged("classes_table"), "people"), threads=2) as crowd:
            os.kill(children(server.pid)[0], signal.SIGKILL)
            assert server.ended() == 1
        assert not crowd.wrong and crowd.lost <= crowd.threads
        assert "the process that starts the others was ended" in server.said and "Traceback" not in server.said
        server.until(lambda: not any(map(alive, below)), "end all its processes")


def test_no_process_outlives_a_killed_supervisor(folder: Path) -> None:
    with RunningServer(f"people={folder}", "--workers", 1) as server:
        below = server.below()
        assert len(below) == 3
        os.kill(server.pid, signal.SIGKILL)
        server.until(lambda: not any(map(alive, below)), "end all its processes")
        assert is_closed(server.port)
