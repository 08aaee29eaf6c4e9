"""Kept results: found only whole, safe from kills, damage, full disks, other processes and stores that nobody reaches."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.base.errors import DataError, StoreError
from flatout.pipelines.results.store import ResultStore
from flatout.pipelines.results.stored import StoredResult

KEY = "0123abcd"


def made(folder: Path, content: str = "a") -> dict[str, Path]:
    """A stage's outputs: a file and a folder."""
    (folder / "model" / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "model" / "empty").mkdir(exist_ok=True)
    (folder / "model" / "deep" / "weights").write_text(content * 1000)
    (folder / "model" / "run.sh").write_text("exit 0")
    (folder / "model" / "run.sh").chmod(0o755)
    (folder / "report.json").write_text(json.dumps({"accuracy": content}))
    return {"model": folder / "model", "report.json": folder / "report.json"}


def kept(store: ResultStore, folder: Path, content: str = "a", key: str = KEY, seconds: float = 1.0) -> StoredResult:
    return store.keep(key, made(folder, content), {"seconds": seconds}, seconds=seconds)


def test_what_was_kept_is_put_back_in_another_folder(tmp_path: Path) -> None:
    kept(ResultStore(tmp_path / "store"), tmp_path / "here")
    store = ResultStore(tmp_path / "store")
    found = store.find(KEY)
    assert found is not None and found.record == {"seconds": 1.0} and store.notes == []
    assert store.restore(found, tmp_path / "there") == ("model", "report.json")
    assert (tmp_path / "there/model/deep/weights").read_text() == "a" * 1000
    assert (tmp_path / "there/model/empty").is_dir()
    assert os.access(tmp_path / "there/model/run.sh", os.X_OK) and not os.access(tmp_path / "there/report.json", os.X_OK)
    assert store.restore(found, tmp_path / "there") == ()  # nothing is written twice
    (tmp_path / "there/model/stray").write_text("x")
    (tmp_path / "there/report.json").unlink()
    assert store.restore(found, tmp_path / "there") == ("model", "report.json")
    assert not (tmp_path / "there/model/stray").exists()
    assert store.find("another") is None


def test_an_edit_of_a_restored_file_leaves_the_store_alone(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store")
    result = kept(store, tmp_path / "here")
    store.restore(result, tmp_path / "there")
    with (tmp_path / "there/report.json").open("a") as file:
        file.write("edited")
    assert store.find(KEY) is not None
    store.restore(result, tmp_path / "there")
    assert (tmp_path / "there/report.json").read_text() == '{"accuracy": "a"}'


@pytest.mark.parametrize("harm", ["flip", "cut", "gone", "line", "other line", "empty line"])
def test_a_damaged_result_is_a_miss_and_said(tmp_path: Path, harm: str) -> None:
    store = ResultStore(tmp_path / "store")
    result = kept(store, tmp_path / "here")
    assert store.find(KEY) is not None
    largest = max(result.digests, key=lambda digest: result.digests[digest])
    target = tmp_path / "store/objects" / largest[:2] / largest
    line = tmp_path / f"store/results/{KEY}.json"
    if harm in ("flip", "cut"):
        content = target.read_bytes()
        before = target.stat()
        target.chmod(0o644)
        target.write_bytes(content[:500] + b"X" + content[501:] if harm == "flip" else content[:500])
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif harm == "gone":
        target.unlink()
    elif harm == "other line":
        line.write_bytes(line.read_bytes().replace(KEY.encode(), b"99999999"))
    else:
        line.write_bytes(line.read_bytes()[:100] if harm == "line" else b"")
    assert store.find(KEY) is None
    assert len(store.notes) == 1 and "again" in store.notes[0]
    assert store.find(KEY) is None
    again = ResultStore(tmp_path / "store")
    kept(again, tmp_path / "here")
    assert again.find(KEY) is not None and again.notes == []


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "model/../../outside"])
def test_a_line_from_elsewhere_can_not_write_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    store = ResultStore(tmp_path / "store")
    store.keep(KEY, {name: made(tmp_path / "here")["report.json"]}, {}, seconds=1)
    assert store.find(KEY) is None
    assert "inside" in store.notes[0]


def test_an_output_that_differs_between_runs_of_one_key_is_said(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store")
    assert kept(store, tmp_path / "here").unlike == ()
    assert kept(store, tmp_path / "here").unlike == () and store.notes == []
    second = kept(store, tmp_path / "here", "b")
    assert second.unlike == ("model", "report.json") and "not repeatable" in store.notes[0]
    found = store.find(KEY)
    assert found is not None and found.outputs == second.outputs


def test_a_missing_output_is_an_error_and_nothing_is_kept(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store")
    with pytest.raises(DataError, match="none"):
        store.keep(KEY, {"none": tmp_path / "none"}, {}, seconds=1)
    assert store.find(KEY) is None


def test_a_full_disk_is_an_error_that_leaves_nothing_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultStore(tmp_path / "store")
    kept(store, tmp_path / "here")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="full"):
        kept(store, tmp_path / "here", "b")
    monkeypatch.undo()
    assert not list((tmp_path / "store/writing").iterdir())
    assert not [path for path in (tmp_path / "store").rglob("*.tmp")]
    found = store.find(KEY)
    assert found is not None
    store.restore(found, tmp_path / "there")
    assert (tmp_path / "there/report.json").read_text() == '{"accuracy": "a"}'


def test_room_is_made_by_dropping_what_is_cheapest_to_make_again(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store", budget=25_000)
    for key, seconds in (("slow", 500.0), ("quick", 1.0), ("medium", 60.0)):
        output = tmp_path / key
        output.write_bytes(os.urandom(10_000))
        store.keep(key, {"out": output}, {}, seconds=seconds)
    assert store.find("quick") is None
    assert store.find("slow") is not None and store.find("medium") is not None
    assert any("dropped 1" in note for note in store.notes)
    assert sum(path.stat().st_size for path in (tmp_path / "store/objects").rglob("*") if path.is_file()) == 20_000


def test_a_file_that_two_results_have_stays_until_both_are_dropped(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store", budget=15_000)
    output = tmp_path / "out"
    output.write_bytes(os.urandom(10_000))
    store.keep("one", {"out": output}, {}, seconds=100)
    store.keep("two", {"out": output}, {}, seconds=1)
    assert store.find("one") is not None and store.find("two") is not None


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_results_are_shared_between_machines(tmp_path: Path, kind: str) -> None:
    shared = str(tmp_path / "shared") if kind == "folder" else f"memory://{tmp_path.name}"
    kept(ResultStore(tmp_path / "machine1", shared=shared), tmp_path / "here")
    other = ResultStore(tmp_path / "machine2", shared=shared)
    found = other.find(KEY)
    assert found is not None and other.notes == []
    other.restore(found, tmp_path / "there")
    assert (tmp_path / "there/model/deep/weights").read_text() == "a" * 1000


@pytest.mark.parametrize("harm", ["flip", "gone", "line"])
def test_a_damaged_shared_result_is_a_miss_and_said(tmp_path: Path, harm: str) -> None:
    result = kept(ResultStore(tmp_path / "machine1", shared=str(tmp_path / "shared")), tmp_path / "here")
    largest = max(result.digests, key=lambda digest: result.digests[digest])
    target = tmp_path / "shared/objects" / largest[:2] / largest
    if harm == "flip":
        target.chmod(0o644)
        target.write_bytes(b"X" * target.stat().st_size)
    elif harm == "gone":
        target.unlink()
    else:
        (tmp_path / f"shared/results/{KEY}.json").write_text("{")
    other = ResultStore(tmp_path / "machine2", shared=str(tmp_path / "shared"))
    assert other.find(KEY) is None and len(other.notes) == 1
    assert not list((tmp_path / "machine2").rglob("writing/*"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/results", "nosuch://bucket/results", "/proc/nosuch/results"])
def test_a_shared_place_that_nobody_reaches_is_said_once_and_done_without(tmp_path: Path, url: str) -> None:
    store = ResultStore(tmp_path / "store", shared=url)
    assert store.find(KEY) is None
    kept(store, tmp_path / "here")
    assert store.find(KEY) is not None
    assert len(store.notes) == 1 and url in store.notes[0]


_KEEPS_ON = """
import sys, itertools
from pathlib import Path
from flatout.pipelines.results.store import ResultStore
where, folder, own = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
folder.mkdir()
print("ready", flush=True)
for n in itertools.count():
    (folder / "out").write_bytes(b"%d" % (n % 7) * 200_000)
    store = ResultStore(where, budget=900_000)
    result = store.keep(f"key{n % 7}", {"out": folder / "out"}, {"n": n % 7}, seconds=n % 7)
    found = store.bring_back(f"key{(n + 3) % 7}", folder / "back")
    if found is not None:
        if (folder / "back" / "out").read_bytes() != b"%d" % found.record["n"] * 200_000:
            sys.exit("a result has another's content")
    if store.notes and not all("dropped" in note for note in store.notes):
        sys.exit(str(store.notes))
"""


def test_two_processes_at_once_that_are_killed_leave_whole_results(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for turn in range(3):
        commands = [
            [sys.executable, "-c", _KEEPS_ON, str(store), str(tmp_path / f"{turn}-{own}"), str(own)] for own in range(2)
        ]
        both = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for one in commands]
        for one in both:
            assert one.stdout is not None and one.stdout.readline() == b"ready\n"
        time.sleep(0.3 + 0.37 * turn)
        for one in both:
            one.send_signal(signal.SIGKILL)
        for one in both:
            _, errors = one.communicate()
            assert one.returncode == -signal.SIGKILL, errors.decode()
    after = ResultStore(store)
    found = [after.find(f"key{n}") for n in range(7)]
    assert after.notes == [] and any(one is not None for one in found)
    output = tmp_path / "out"
    output.write_bytes(b"0")
    after.keep("last", {"out": output}, {}, seconds=1)
    assert not list((store / "writing").iterdir())
