"""The live page: news of a run that is being written, from what its folder has, without a change to it."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from live_pages import watching
from page_curves import chart, curves_in

from flatout.base.errors import MachineError
from flatout.base.listening import bound_socket
from flatout.base.sealed import sealed
from flatout.reporting.charts import short
from flatout.reporting.live import stream, watched
from flatout.reporting.live.address import open_port
from flatout.reporting.live.news import CurveNews
from flatout.reporting.live.tail import LogTail
from flatout.store.lock import RunLock
from flatout.store.run_folder import RunFolder

EVIL = "<img src=x onerror=alert(2)>&\"'"
UPGRADES = Path(__file__).parent.parent / "fixtures" / "upgrade"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "EVERY_S", 0.05)
    monkeypatch.setattr(stream, "_LEAST_REST_S", 0.0)
    monkeypatch.setattr(stream, "_REST", 0.0)
    monkeypatch.setattr(watched, "_LOOK_S", 0.0)


@pytest.fixture
def lock(run: RunFolder) -> Iterator[RunLock]:
    held = run.lock()
    held.take()
    yield held
    held.release()


@pytest.fixture
def training(run: RunFolder, lock: RunLock) -> RunFolder:
    """A run that looks to others as if it trained."""
    (run.path / "result.json").unlink()
    lines = run.events_path.read_bytes().splitlines(keepends=True)
    run.events_path.write_bytes(b"".join(line for line in lines if b'"kind": "finished"' not in line))
    return run


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "step", "t": float(number), "at": 1.8e9 + number, "step": number, "loss": 0.25, "lr": 0.001,
            "elapsed_s": number / 10, "done": number / 100, "samples_per_s": 5000.0, **fields}  # fmt: skip


def points(events: Iterator[tuple[str, str, Any]]) -> tuple[str, dict[str, Any]]:
    """The next event with points of one run: its id, and the curves."""
    for kind, cursor, data in events:
        if kind == "points" and data["news"]:
            (news,) = data["news"].values()
            curves = news["curves"].items()
            return cursor, {name: {"x": news["steps"], "bad": [], **curve} for name, curve in curves}
    raise AssertionError("the stream ended")


def parts_of(events: Iterator[tuple[str, str, Any]], words: str) -> dict[str, str]:
    """The first parts with these words."""
    for _, _, data in events:
        parts: dict[str, str] = data.get("parts", {})
        if any(words in html for html in parts.values()):
            return parts
    raise AssertionError("the stream ended")


def cursor_in(page: str) -> str:
    return str(curves_in(page)["cursor"])


def test_curves_grow_and_a_torn_line_waits_until_it_is_whole(training: RunFolder, log: Callable[..., None]) -> None:
    with watching(training.path.parent) as watcher:
        page = watcher.get()[1]
        assert "1 of 1 runs are training" in page and chart(page, "loss")["series"][0]["id"] == "loss"
        with watcher.stream(f"/events?after={quote(cursor_in(page))}") as events:
            log(training, step(41, loss=0.5), step(42, loss=0.75))
            _, curves = points(events)
            assert curves["loss"] == {"x": [41, 42], "y": [0.5, 0.75], "bad": []}
            line = sealed(step(43, loss=0.125)) + b"\n"
            for part in (line[:50], line[50:]):
                with training.events_path.open("ab") as file:
                    file.write(part)
            assert points(events)[1]["loss"] == {"x": [43], "y": [0.125], "bad": []}
            log(training, {"kind": "evaluation", "t": 44.0, "at": 9.0, "step": 43, "metrics": {"loss": 0.5, "accuracy": 0.75}})
            assert points(events)[1] == {
                "loss validation": {"x": [43], "y": [0.5], "bad": []},
                "accuracy": {"x": [43], "y": [0.75], "bad": []},
            }
            assert "accuracy 0.7500" in parts_of(_after(log, training, events), "0.7500")["now"]


def _after(log: Callable[..., None], run: RunFolder, events: Iterator[Any]) -> Iterator[Any]:
    log(run, step(45))
    return events


def test_a_reconnect_goes_on_where_it_was_also_with_another_watcher(training: RunFolder, log: Callable[..., None]) -> None:
    url = f"/run/{training.name}"
    with watching(training.path.parent) as watcher:
        with watcher.stream(f"{url}/events?after={quote(cursor_in(watcher.get(url)[1]))}") as events:
            log(training, step(41))
            cursor, _ = points(events)
        log(training, step(42), step(43))
        with watcher.stream(f"{url}/events?after=", **{"Last-Event-ID": cursor}) as events:
            assert points(events)[1]["loss"]["x"] == [42, 43]
    with watching(training.path.parent) as other, other.stream(f"{url}/events", **{"Last-Event-ID": cursor}) as events:
        assert points(events)[1]["loss"]["x"] == [42, 43]


@pytest.mark.parametrize("cursor", ["", "nonsense", "00000000:7t", "{name}:11t", "{name}:99999999999t"])
def test_a_page_that_is_nowhere_in_the_log_gets_all_of_it(training: RunFolder, cursor: str) -> None:
    from flatout.reporting.live.pages import id_of

    after = cursor.format(name=id_of(training.name))
    with watching(training.path.parent) as watcher, watcher.stream("/events", **{"Last-Event-ID": after}) as events:
        _, _, data = next(event for event in events if event[0] == "whole")
        assert len(data["curves"]["charts"][0]["series"][0]["y"]) == 40


def test_many_log_points_at_once_have_the_values_of_the_log(tmp_path: Path) -> None:
    """Most are read without their JSON: odd ones among them as well as the others."""
    ordinary = [step(number, loss=number / 7, grad_norm=None, memory_bytes=1 << 40) for number in range(1, 20)]
    odd = [
        step(20, loss=None),
        step(21, loss=float("nan")),
        step(22, loss=float("-inf")),
        step(23, loss=-1e-12),
        step(24, tag="a"),
    ]
    written = [sealed(event) for event in [*ordinary, *odd, *ordinary[-2:]]]
    written[4] = written[4].replace(b"0.714", b"9.714")
    (tmp_path / "log").write_bytes(b"\n".join(written) + b"\n")
    read = LogTail(tmp_path / "log").read()
    assert read is not None and read[4] == {"kind": "damaged"}
    sent = CurveNews()
    sent.hear(read)
    loss = sent.data()["curves"]["loss"]
    finite = [event for event in [*ordinary[:4], *ordinary[5:], *odd[3:], *ordinary[-2:]]]
    assert loss["x"] == [event["step"] for event in finite] and loss["bad"] == [20, 21, 22]
    assert loss["y"] == pytest.approx([event["loss"] for event in finite], rel=1e-4)
    assert (
        sent.data()["curves"]["peak memory"]["y"] == [short(float(1 << 40))] * 20
        and "gradient norm" not in sent.data()["curves"]
    )


def test_a_rollback_and_the_end_of_a_run_are_shown(training: RunFolder, lock: RunLock, log: Callable[..., None]) -> None:
    url = f"/run/{training.name}"
    with watching(training.path.parent) as watcher:
        page = watcher.get(url)[1]
        assert "training" in page and "time left" not in page
        with watcher.stream(f"{url}/events?after={quote(cursor_in(page))}") as events:
            log(
                training,
                {"kind": "rolled_back", "t": 9.0, "at": 9.0, "step": 30, "from_step": 40, "rate_factor": 0.5, "why": "no"},
            )
            whole = next(data for kind, _, data in events if kind == "whole")
            assert [one["name"] for one in whole["curves"]["charts"][0]["series"]][:2] == ["training", "training, given up"]
            training.write(
                "result.json", {"status": "finished", "reason": "budget spent", "steps": 40, "metrics": {"loss": 0.5}}
            )
            lock.release()
            assert "budget spent" in parts_of(events, "budget spent")["glance"]


def test_values_that_are_not_finite_are_marked(training: RunFolder, log: Callable[..., None]) -> None:
    with watching(training.path.parent) as watcher:
        with watcher.stream(f"/events?after={quote(cursor_in(watcher.get()[1]))}") as events:
            log(training, step(41, loss=None), step(42, loss=float("nan")), step(43, grad_norm=float("inf")))
            _, curves = points(events)
            assert curves["loss"] == {"x": [43], "y": [0.25], "bad": [41, 42]} and curves["gradient norm"]["bad"] == [43]
        log(training, step(44, loss=float("inf")))
        assert "not finite" in watcher.get(f"/run/{training.name}")[1]


def test_names_with_html_in_them_stay_words(training: RunFolder, log: Callable[..., None]) -> None:
    evil = training.path.parent / EVIL.replace("/", "")
    shutil.copytree(training.path, evil)
    with watching(training.path.parent) as watcher:
        page = watcher.get()[1]
        assert "<img" not in page.replace('<img src="data:', "") and "&lt;img src=x" in page
        status, own, _ = watcher.get(f"/run/{quote(evil.name, safe='')}")
        assert status == 200 and "&lt;img src=x" in own and "<img src=x" not in own
        with watcher.stream(f"/events?after={quote(cursor_in(page))}") as events:
            log(training, {"kind": "evaluation", "t": 9.0, "at": 9.0, "step": 40, "metrics": {EVIL: 0.5}})
            assert points(events)[1][EVIL]["y"] == [0.5]
            log(training, {"kind": "degraded", "t": 9.0, "at": 9.0, "what": EVIL, "why": EVIL})
            whole = next(data for kind, _, data in events if kind == "whole")
            assert "<img src=x" not in "".join(whole["parts"].values())


def test_two_watchers_show_the_same_and_change_nothing(training: RunFolder, log: Callable[..., None]) -> None:
    def state() -> dict[str, Any]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(training.path.parent.rglob("*"))}

    before = state()
    with watching(training.path.parent) as one, watching(training.path.parent) as other:
        pages = [watcher.get(f"/run/{training.name}")[1] for watcher in (one, other)]
        assert pages[0] == pages[1] and state() == before
        after = f"/events?after={quote(cursor_in(one.get()[1]))}"
        with one.stream(after) as first, other.stream(after) as second, one.stream(after) as third:
            log(training, step(41))
            found = [points(events) for events in (first, second, third)]
            assert found[0] == found[1] == found[2]


def test_runs_of_several_processes_say_so(training: RunFolder, log: Callable[..., None]) -> None:
    log(
        training,
        {"kind": "planned", "t": 0.0, "at": 9.0, "run": training.name, "processes": 4, "mesh": "data=2,tensor=2"},
        step(41),
    )
    with watching(training.path.parent) as watcher:
        assert "4 processes, data=2,tensor=2" in watcher.get(f"/run/{training.name}")[1]


def test_a_thousand_runs_in_a_folder(run: RunFolder, runs: Path) -> None:
    for number in range(999):
        shutil.copytree(run.path, runs / f"many-{number}", copy_function=os.link)
    with watching(runs) as watcher:
        status, page, _ = watcher.get()
        assert status == 200 and "0 of 1,000 runs are training" in page and "940 older runs are not shown" in page
        assert len(curves_in(page)["runs"]) == 12 and len(page.encode()) < 300_000
        assert watcher.get("/run/many-998")[0] == 200


def test_runs_of_older_versions_below_folders(tmp_path: Path) -> None:
    archive = sorted(UPGRADES.glob("*/runs.tar.xz"))[0]
    with lzma.open(archive) as raw, tarfile.open(fileobj=raw) as files:
        files.extractall(tmp_path / "a" / "b", filter="data")
    names = {str(about.parent.relative_to(tmp_path)) for about in tmp_path.rglob("run.json")}
    with watching(tmp_path) as watcher:
        page = watcher.get()[1]
        for name in names:
            assert f'href="/run/{quote(name, safe="")}"' in page
            assert watcher.get(f"/run/{quote(name, safe='')}")[0] == 200


def test_a_folder_that_vanishes_and_comes_back(training: RunFolder, tmp_path: Path) -> None:
    with watching(training.path.parent, training.name) as watcher, watcher.stream() as events:
        next(events)
        training.path.rename(tmp_path / "elsewhere")
        assert "is gone" in next(data for kind, _, data in events if kind == "said")["words"]
        assert watcher.get()[0] == 404
        (tmp_path / "elsewhere").rename(training.path)
        assert next(data for kind, _, data in events if kind == "said")["words"] == ""
        assert next(kind for kind, _, _ in events if kind != "said") == "whole"


def test_a_damaged_run_does_not_hide_the_others(run: RunFolder, runs: Path) -> None:
    shutil.copytree(run.path, runs / "torn-1")
    (runs / "torn-1" / "run.json").write_bytes(b'{"flatout')
    (runs / "torn-1" / "result.json").write_bytes(b"{")
    with watching(runs) as watcher:
        page = watcher.get()[1]
        assert "torn-1" in page and "damaged" in page and len(curves_in(page)["runs"]) == 1
        assert watcher.get("/run/torn-1")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", ""])
def test_a_page_of_another_site_cannot_read_it(run: RunFolder, host: str) -> None:
    with watching(run.path.parent) as watcher:
        assert watcher.get("/", Host=host)[0] == 421 and watcher.get("/events", Host=host)[0] == 421
        for own in ("localhost:9000", "127.0.0.1", "[::1]:8321"):
            assert watcher.get("/", Host=own)[0] == 200
        _, _, headers = watcher.get()
        assert headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in headers


def test_with_a_token_only_who_has_it_may_look(run: RunFolder) -> None:
    with watching(run.path.parent, token="s3cret") as watcher:
        assert watcher.get()[0] == watcher.get("/?token=wrong")[0] == watcher.get("/events")[0] == 401
        status, _, headers = watcher.get("/?token=s3cret")
        cookie = headers["set-cookie"]
        assert status == 303 and headers["location"] == "/" and "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert watcher.get("/", Cookie=cookie.partition(";")[0])[0] == 200
        assert watcher.get("/", Authorization="Bearer s3cret", Host="any.name")[0] == 200
        assert run.name not in watcher.get()[1]


@pytest.mark.parametrize(
    "path", ["/run/..", "/run/..%2f..%2fetc%2fpasswd", "/../run.json", "/run/%00", "/run.json", "/x/events"]
)
def test_no_part_of_a_url_is_a_path(run: RunFolder, path: str) -> None:
    with watching(run.path.parent) as watcher:
        assert watcher.get(path)[0] == 404
        assert watcher.get(f"{path}/events")[0] == 404


def test_a_port_in_use_is_named_and_another_one_offered(run: RunFolder) -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=rf"can't use 127.0.0.1 port {port}: Address already in use; --port \d+ is free"):
            bound_socket("127.0.0.1", port)
        command = [sys.executable, "-m", "flatout", "watch", str(run.path), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1 and f"port {port}" in done.stderr and "is free" in done.stderr and not done.stdout


def test_the_usual_port_in_use_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        monkeypatch.setattr("flatout.reporting.live.address.PORT", taken.getsockname()[1])
        said: list[str] = []
        with open_port("127.0.0.1", None, said.append) as other:
            assert other.getsockname()[1] != taken.getsockname()[1] and "is in use" in said[0]


def test_viewers_hear_that_the_watcher_ends(run: RunFolder) -> None:
    with watching(run.path.parent) as watcher, watcher.stream() as events:
        next(events)
        watcher.server.streams.ended.set()
        assert "has ended" in next(data for kind, _, data in events if kind == "bye")["words"]


def test_too_many_viewers_are_told(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.reporting.live.server._MOST_STREAMS", 1)
    with watching(run.path.parent) as watcher, watcher.stream() as events:
        next(events)
        assert watcher.get("/events")[0] == 503 and watcher.get()[0] == 200
