"""Trials change no file of a person's, whatever writes; and inside of one, files are as the script left them."""

from __future__ import annotations

import glob
import importlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from protected import inside, is_possible
from writers import writers

from flatout.base.errors import MachineError
from flatout.boost.protection import landlock, protecting
from flatout.boost.protection.protecting import AUDIT, LANDLOCK, OVERLAY, choose

HERE = Path(__file__).parent
USER_NAMESPACE = "user-namespace"
UNHEARD = {  # C libraries: why an audit hook is never chosen unasked
    "torch_from_file", "torch_storage", "safetensors", "parquet", "feather", "arrow_csv", "arrow_file", "duckdb",
    "jit_of_the_module", "c_fopen", "c_unlink", "c_rename", "c_chmod",
}  # fmt: skip
BY_KERNEL = [OVERLAY, USER_NAMESPACE, LANDLOCK]


def make_home(folder: Path) -> Path:
    """A folder with things of a person's."""
    for name in ("runs/1", "empty"):
        (folder / name).mkdir(parents=True)
    for name in ("results.csv", "notes.txt", "runs/1/log.txt"):
        (folder / name).write_text(f"my {name}")
    (folder / "array.npy").write_bytes(bytes(64))
    torch.save({"weight": torch.ones(2)}, folder / "model.pt")
    (folder / "link_to_runs").symlink_to("runs")
    with sqlite3.connect(folder / "runs.db") as base:
        base.execute("create table runs (a int)")
    return folder


def state(folder: Path) -> dict[str, Any]:
    """Everything of every file: content, mode, owner, times, attributes."""
    found: dict[str, Any] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content: Any = (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else sorted(os.listdir(path))
        )
        attributes = [] if path.is_symlink() else os.listxattr(path)
        found[str(path)] = (content, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, attributes)
    return found


@pytest.fixture(scope="module")
def possible(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("possible")
    return {kind for kind in (OVERLAY, LANDLOCK, AUDIT) if is_possible(kind, folder)}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, possible: set[str]) -> dict[str, tuple[Any, Any, dict[str, str]]]:
    """For each kind of protection: the person's files before and after all writers, and how each of those ended."""
    kinds = [kind for kind in (*BY_KERNEL, AUDIT) if {USER_NAMESPACE: OVERLAY}.get(kind, kind) in possible]
    folder = tmp_path_factory.mktemp("attacked")
    before = {}
    for kind in kinds:
        for name in writers:
            make_home(folder / kind / "home" / name)
        before[kind] = state(folder / kind / "home")
    environment = {**os.environ, "HOME": str(folder / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    (folder / "home").mkdir()
    command = [sys.executable, str(HERE / "writers.py"), str(folder), *kinds]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert not list((folder / "home").iterdir())
    return {kind: (before[kind], state(folder / kind / "home"), told[kind]) for kind in kinds}


@pytest.mark.parametrize("kind", BY_KERNEL)
def test_no_writer_changes_anything(kind: str, attacked: dict[str, tuple[Any, Any, dict[str, str]]]) -> None:
    if kind not in attacked:
        pytest.skip(f"this machine does not allow {kind}")
    before, after, told = attacked[kind]
    assert len(told) >= 80
    assert after == before


@pytest.mark.parametrize("kind", [OVERLAY, USER_NAMESPACE])
def test_on_an_overlay_every_writer_gets_what_it_asked_for(kind: str, attacked: Any) -> None:
    if kind not in attacked:
        pytest.skip(f"this machine does not allow {kind}")
    missing = "ModuleNotFoundError"
    assert {name: told for name, told in attacked[kind][2].items() if told != "done" and missing not in told} == {}


def test_under_landlock_writers_of_python_get_what_they_asked_for(attacked: Any) -> None:
    if LANDLOCK not in attacked:
        pytest.skip("this machine does not allow Landlock")
    stopped = {name for name, told in attacked[LANDLOCK][2].items() if told != "done"}
    python = {"savetxt", "bz2_open", "tar", "sqlite", "jit", "unlink_by_folder", "rename_folder", "rmtree", "from_its_folder"}
    assert not stopped & (python | {"open_w", "torch_save", "memmap", "by_a_locked_file"})
    assert "parquet" in stopped  # by C++: nobody can redirect that


def test_an_audit_hook_stops_what_python_does(attacked: Any) -> None:
    told = attacked[AUDIT][2]
    assert "by flatout" in told["subprocess_rm"] and "by flatout" in told["file_io"]
    before, after = attacked[AUDIT][:2]
    changed = {
        Path(one).relative_to(next(iter(before))).parts[0] for one in {*before, *after} if before.get(one) != after.get(one)
    }
    changed.discard("shelved")  # where Python has gdbm, that is a C library, too
    assert changed == UNHEARD - {name for name in UNHEARD if "ModuleNotFoundError" in told[name]}


# what the script sees


def remade() -> None:
    if os.path.exists("runs"):
        shutil.rmtree("runs")
    assert not os.path.exists("runs") and "runs" not in os.listdir(".")
    os.makedirs("runs/1")
    assert os.listdir("runs/1") == []  # not what was there before
    Path("runs/1/log.txt").write_text("new")
    assert Path("runs/1/log.txt").read_text() == "new"


def entered() -> None:
    os.makedirs("out/deep")
    os.chdir("out/deep")
    assert Path.cwd().parts[-2:] == ("out", "deep")
    Path("here.txt").write_text("x")
    assert Path("../deep/here.txt").read_text() == "x" and Path("../../notes.txt").read_text() == "my notes.txt"
    os.chdir("../..")
    assert Path("out/deep/here.txt").exists()


def renamed_over() -> None:
    Path("results.tmp").write_text("better")
    os.replace("results.tmp", "results.csv")
    assert Path("results.csv").read_text() == "better" and not Path("results.tmp").exists()
    os.rename("results.csv", "old.csv")
    assert not os.path.exists("results.csv") and Path("old.csv").read_text() == "better"
    with pytest.raises(FileNotFoundError):
        Path("results.csv").read_text()
    os.rename("runs", "runs.old")
    assert Path("runs.old/1/log.txt").read_text() == "my runs/1/log.txt" and not Path("runs").exists()


def locked() -> None:
    for _ in range(2):
        handle = os.open("lock", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        with pytest.raises(FileExistsError):
            os.open("lock", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.close(handle)
        os.unlink("lock")
    with pytest.raises(FileExistsError):
        os.open("notes.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.remove("notes.txt")
    with open("notes.txt", "x") as file:
        file.write("again")
    assert Path("notes.txt").read_text() == "again"


def listed() -> None:
    Path("runs/2").mkdir()
    Path("runs/2/log.txt").write_text("second")
    os.remove("notes.txt")
    assert sorted(os.listdir("runs")) == ["1", "2"] and sorted(glob.glob("runs/*/log.txt")) == [
        "runs/1/log.txt",
        "runs/2/log.txt",
    ]
    assert next((top, sorted(names)) for top, names, _ in os.walk("runs")) == ("runs", ["1", "2"])
    assert "notes.txt" not in [entry.name for entry in os.scandir(".")]
    assert {path.name for path in Path("runs").rglob("*.txt")} == {"log.txt"}
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("runs")


def linked() -> None:
    for step in (1, 2):
        Path(f"checkpoint-{step}").write_text(str(step))
        if os.path.lexists("latest"):
            os.unlink("latest")
        os.symlink(f"checkpoint-{step}", "latest")
    assert Path("latest").read_text() == "2" and os.readlink("latest") == "checkpoint-2"
    os.symlink("notes.txt", "to_notes")
    assert Path("to_notes").read_text() == "my notes.txt"


def kept_errors() -> None:
    for call in (
        lambda: os.remove("nothing"),
        lambda: Path("no/thing").write_text("x"),
        lambda: os.listdir("nothing"),
        lambda: os.rmdir("no"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(FileExistsError):
        os.mkdir("runs")
    with pytest.raises(NotADirectoryError):
        Path("notes.txt/inside").write_text("x")


def appended() -> None:
    with open("notes.txt", "a") as file:
        file.write(" and more")
    assert Path("notes.txt").read_text() == "my notes.txt and more"
    torch.save({"weight": torch.zeros(2)}, "model.pt")
    assert torch.load("model.pt")["weight"].sum() == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "inside").mkdir()
    assert not os.path.exists(folder)


def imported() -> None:
    Path("generated.py").write_text("value = 42\n")
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    assert importlib.import_module("generated").value == 42


@pytest.mark.parametrize("kind", [OVERLAY, LANDLOCK, AUDIT])
@pytest.mark.parametrize(
    "look",
    [remade, entered, renamed_over, locked, listed, linked, kept_errors, appended, imported],
    ids=lambda one: one.__name__,
)
def test_inside_files_are_as_the_script_left_them(
    kind: str, look: Any, possible: set[str], tmp_path: Path, monkeypatch: Any
) -> None:
    if kind not in possible:
        pytest.skip(f"this machine does not allow {kind}")
    home = make_home(tmp_path / "home")
    before = state(home)
    monkeypatch.chdir(home)
    assert inside(kind, tmp_path / "scratch", look) == ""
    assert state(home) == before


def test_what_a_trial_leaves_can_be_removed(possible: set[str], tmp_path: Path, monkeypatch: Any) -> None:
    for kind in sorted(possible):
        home = make_home(tmp_path / kind / "home")
        monkeypatch.chdir(home)
        inside(kind, tmp_path / kind / "scratch", remade)
        protecting.remove(tmp_path / kind / "scratch")
        assert not (tmp_path / kind / "scratch").exists()


def test_an_older_landlock_can_not_empty_a_file_that_is_opened_for_reading(tmp_path: Path, monkeypatch: Any) -> None:
    if not landlock.version():
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setattr(landlock, "version", lambda: 1)
    (tmp_path / "results.csv").write_text("mine")

    def empty() -> None:
        with pytest.raises(PermissionError):
            os.truncate(tmp_path / "results.csv", 0)
        with pytest.raises(PermissionError):
            os.open(tmp_path / "results.csv", os.O_RDONLY | os.O_TRUNC)

    child = os.fork()
    if not child:
        try:
            landlock.enter([])
            empty()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and (tmp_path / "results.csv").read_text() == "mine"


# which one is taken


def test_the_best_that_works_is_taken_and_said() -> None:
    assert choose(lambda kind: "", unprotected=False).kind == OVERLAY
    found = choose(lambda kind: "Operation not permitted" if kind == OVERLAY else "", unprotected=False)
    assert found.kind == LANDLOCK and "overlay: Operation not permitted" in found.sentence


def test_without_the_kernels_help_nothing_is_tried_unasked() -> None:
    with pytest.raises(MachineError, match="--unprotected"):
        choose(lambda kind: "not allowed", unprotected=False)
    found = choose(lambda kind: "not allowed", unprotected=True)
    assert found.kind == AUDIT and "C libraries still write to your real files" in found.sentence


def test_a_sandbox_that_only_pretends_is_noticed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    assert not protecting.leaked(work)
    protecting.write_past_python(protecting._outside(work))
    assert protecting.leaked(work) and not protecting.leaked(work)
