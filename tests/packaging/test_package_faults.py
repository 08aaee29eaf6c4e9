"""Damaged, incomplete, newer and half-written packages; full disks; runs that can't be exported; data that does not fit."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from packaged_runs import Exported, reseal, same, trained

import flatout as fo
from flatout.base.errors import DamagedFile, DataError, FlatoutError, MissingExtra, NotAPackage, StoreError, UsageError
from flatout.base.sealed import opened, sealed
from flatout.packaging import export as exporting
from flatout.packaging import folder as folders
from flatout.packaging.capture import Captured
from flatout.packaging.folder import FORMAT, MANIFEST
from flatout.packaging.package import open_package

SOURCES = Path(__file__).parent.parent.parent / "src"
UPGRADE = Path(__file__).parent.parent / "fixtures" / "upgrade"


@pytest.fixture
def copied(exported: Callable[[str], Exported], tmp_path: Path) -> Path:
    return exported("classes_table").copy(tmp_path / "package")


# ---- damage ----


def test_a_flipped_bit_in_any_file_is_named(copied: Path) -> None:
    for file in sorted(copied.iterdir()):
        intact = file.read_bytes()
        size = len(intact)
        for place in sorted({0, 7, 8, size // 3, size // 2, size - 30, size - 12, size - 5, size - 2, size - 1}):
            for bit in (1, 32):
                changed = bytearray(intact)
                changed[place] ^= bit
                file.write_bytes(changed)
                with pytest.raises(DamagedFile) as error:
                    open_package(copied)
                assert file.name in str(error.value), (file.name, place, bit)
        file.write_bytes(intact)
    open_package(copied)


def test_every_bit_of_the_manifest_counts(copied: Path) -> None:
    file = copied / MANIFEST
    intact = file.read_bytes()
    for place in range(len(intact) - 40, len(intact)):  # the seal, which is the last part of the line
        for bit in range(8):
            changed = bytearray(intact)
            changed[place] ^= 1 << bit
            file.write_bytes(changed)
            with pytest.raises(StoreError, match=MANIFEST):
                open_package(copied).card  # noqa: B018


def test_files_too_many_and_too_few_are_named(copied: Path) -> None:
    (copied / "notes.txt").write_text("mine")
    with pytest.raises(DamagedFile, match=r"notes\.txt is not part of the package"):
        open_package(copied)
    (copied / "notes.txt").unlink()
    (copied / "more").mkdir()
    with pytest.raises(DamagedFile, match="more is not part of the package"):
        open_package(copied)
    (copied / "more").rmdir()
    for file in sorted(copied.iterdir()):
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(NotAPackage if file.name == MANIFEST else DamagedFile, match=file.name):
            open_package(copied)
        if file.name != MANIFEST:
            file.mkdir()
            with pytest.raises(DamagedFile, match=f"{file.name} is not a file"):
                open_package(copied)
            file.rmdir()
        file.write_bytes(content[:-1])
        with pytest.raises(DamagedFile, match=file.name):
            open_package(copied)
        file.write_bytes(content)


def test_a_file_that_goes_after_the_package_was_opened(copied: Path) -> None:
    package = open_package(copied)
    (copied / "program.json").unlink()
    with pytest.raises(DamagedFile, match=r"program\.json is missing"):
        package.program  # noqa: B018


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_that_may_not_be_read_is_named(copied: Path) -> None:
    (copied / "card.json").chmod(0)
    with pytest.raises(StoreError, match=r"card\.json can't be read"):
        open_package(copied)


def test_an_edited_manifest_is_damaged(copied: Path) -> None:
    file = copied / MANIFEST
    for old, new in ((b'"format"', b'"formal"'), (b"card.json", b"cord.json"), (b"sha256", b"sha257")):
        intact = file.read_bytes()
        file.write_bytes(intact.replace(old, new))
        with pytest.raises(DamagedFile, match=MANIFEST):
            open_package(copied)
        file.write_bytes(intact)
    for content in (
        b"",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"format": 1}\n',
        b"\xff\n",
        sealed({"format": "x", "files": {}}) + b"\n",
    ):
        file.write_bytes(content)
        with pytest.raises(DamagedFile, match=MANIFEST):
            open_package(copied)


def test_a_manifest_can_not_name_files_elsewhere(copied: Path) -> None:
    (copied.parent / "outside").write_bytes(b"")
    written = opened((copied / MANIFEST).read_bytes()[:-1])
    written.pop("crc", None)
    written["files"]["../outside"] = {"sha256": folders.digest(copied.parent / "outside"), "bytes": 0}
    (copied / MANIFEST).write_bytes(sealed(written) + b"\n")
    with pytest.raises(DamagedFile, match="outside is missing"):
        open_package(copied)


def test_a_package_of_a_newer_version_says_so(copied: Path) -> None:
    written = opened((copied / MANIFEST).read_bytes()[:-1])
    (copied / MANIFEST).write_bytes(sealed({**written, "format": FORMAT + 1, "flatout": "99.1"}) + b"\n")
    with pytest.raises(StoreError, match=rf"flatout 99\.1, in format {FORMAT + 1}.*up to {FORMAT}.*newer"):
        open_package(copied)


def test_what_is_no_package_is_named(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a file")
    for path in (tmp_path / "empty", tmp_path / "file", tmp_path / "nowhere", exported("classes_table").run.path):
        with pytest.raises(NotAPackage, match=rf"{path.name} is no package.*flatout export"):
            open_package(path)


def test_a_copy_is_the_same_package(exported: Callable[[str], Exported], copied: Path) -> None:
    made = exported("classes_table")
    assert open_package(copied).folder.hash == made.package().folder.hash
    reseal(copied)
    assert open_package(copied).folder.hash == made.package().folder.hash


# ---- writing ----


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> fo.Run:
    folder = tmp_path_factory.mktemp("small")
    x = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=np.arange(24) % 3)
    return trained(folder, {"arrays": str(folder / "rows.npz")})


@pytest.fixture(scope="module")
def graph_of_small(small: fo.Run, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "_write_onnx", lambda *given: None)
        package = exporting.export(small, tmp_path_factory.mktemp("graph") / "package").package
    return Captured(package.program, package.weights, ())


@pytest.fixture
def captured(graph_of_small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of `small` is made once, because that takes most of the time of an export."""
    monkeypatch.setattr(exporting, "_program", lambda *given: graph_of_small)


@pytest.fixture
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_write_onnx", lambda *given: None)


def test_a_target_that_exists_is_left_alone(small: fo.Run, tmp_path: Path) -> None:
    said: list[str] = []
    for name in ("folder", "file", "link"):
        out = tmp_path / name
        out.mkdir() if name == "folder" else out.write_text("mine") if name == "file" else out.symlink_to(tmp_path / "nowhere")
        for write in (exporting.export, exporting.export_onnx):
            with pytest.raises(UsageError, match=f"{name} exists already.*--out"):
                write(small, out, say=said.append)
    assert said == [], "before any work"
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file", "link"}


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["write_tensors", "write_parsed", "write_manifest", "sync", "rename", "mkdir"])
def test_a_full_disk_leaves_nothing(
    place: str, small: fo.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None, captured: None
) -> None:
    def full(*given: Any, **named: Any) -> Any:
        raise FULL

    if place in ("sync", "rename", "mkdir"):
        target: Any = {"sync": (folders, "_sync"), "rename": (folders.os, "rename"), "mkdir": (Path, "mkdir")}[place]
        monkeypatch.setattr(*target, full)
    else:
        monkeypatch.setattr(exporting, place, full)
    with pytest.raises(StoreError, match="No space left on device; nothing was written"):
        exporting.export(small, tmp_path / "deep" / "package")
    monkeypatch.undo()
    assert not (tmp_path / "deep").exists() or list((tmp_path / "deep").iterdir()) == []


def test_a_disk_that_is_full_in_the_middle_of_a_file(
    small: fo.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None, captured: None
) -> None:
    """The operating system's own answer, where a file may have few bytes."""
    import resource

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    try:
        with pytest.raises(StoreError, match="nothing was written"):
            exporting.export(small, tmp_path / "package")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}


@pytest.mark.parametrize(
    "what", [KeyboardInterrupt(), RuntimeError("a bug"), MemoryError()], ids=lambda one: type(one).__name__
)
def test_an_interruption_leaves_nothing(
    what: BaseException, small: fo.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None, captured: None
) -> None:
    def stops(*given: Any) -> None:
        raise what

    monkeypatch.setattr(exporting, "write_manifest", stops)
    with pytest.raises(type(what)):
        exporting.export(small, tmp_path / "package")
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}


def test_what_a_killed_export_left_goes_with_the_next(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from flatout.packaging.folder import new_file, new_folder\n"
        "with new_folder(Path('package')) as one, new_file(Path('model.onnx')) as other:\n"
        "    (one / 'weights').write_bytes(b'half'); other.write_bytes(b'half'); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2 and all(name.startswith(".") for name in left)
    other = tmp_path / f".package.{os.getppid()}.tmp"
    other.mkdir()  # of a process that is still running
    mine = tmp_path / ".package.mine.tmp"
    mine.mkdir()
    for name in ("package", "model.onnx"):
        with (folders.new_folder if name == "package" else folders.new_file)(tmp_path / name) as aside:
            (aside / "file" if name == "package" else aside).write_text("whole")
    assert {path.name for path in tmp_path.iterdir()} == {"package", "model.onnx", other.name, mine.name}


def test_two_exports_to_one_place(tmp_path: Path) -> None:
    """The one that ends first wins; the other says so, and neither leaves half a package."""
    with pytest.raises(StoreError, match="package"), folders.new_folder(tmp_path / "package") as aside:
        (aside / "mine").write_text("late")
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "theirs").write_text("first")
    assert [path.name for path in (tmp_path / "package").iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


def test_without_the_libraries_of_onnx(small: fo.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: None) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    done = exporting.export(small, tmp_path / "package")
    assert any("flatout[export]" in note and "model.onnx" in note for note in done.notes), done.notes
    assert not (tmp_path / "package/model.onnx").exists()
    x = np.ones((2, 5), np.float32)
    same(done.package.predict(x), fo.predict(small, x, device="cpu"))
    assert "no model.onnx" in done.package.card["parity"]["onnxruntime"]
    with pytest.raises(MissingExtra, match=r"flatout\[export\]"):
        exporting.export_onnx(small, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_package_with_onnx_where_onnx_is_missing(
    exported: Callable[[str], Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = exported("classes_table")
    wanted = fo.predict(made.run, made.rows(5), device="cpu")
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    package = made.package()
    same(package.predict(made.rows(5)), wanted)
    import torch

    found = {one.name: one for one in package.measured(torch.device("cpu"), None)}
    assert "flatout[export]" in (found["onnxruntime"].why_not or "") and found["eager"].why_not is None


# ---- runs ----


def test_a_run_that_is_not_finished_says_what_to_do(small: fo.Run, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for status in ("stopped", "interrupted", "failed", "diverged"):
        shutil.copytree(small.path, runs / status)
        folder = fo.load(status, runs=runs).folder
        folder.write("result.json", {**folder.result, "status": status})
        with pytest.raises(StoreError, match=f"{status} is {status}.*only a finished run"):
            exporting.export(fo.load(status, runs=runs), tmp_path / "package")
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "data.json", "plan.json", "recipe.json"])
def test_a_damaged_run_is_named(name: str, small: fo.Run, tmp_path: Path) -> None:
    shutil.copytree(small.path, tmp_path / "runs/damaged")
    file = tmp_path / "runs/damaged" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(FlatoutError, match=name.replace(".", r"\.")):
        exporting.export(fo.load("damaged", runs=tmp_path / "runs"), tmp_path / "package")
    assert not (tmp_path / "package").exists()


DATES = sorted(path.name for path in UPGRADE.iterdir() if (path / "runs.tar.xz").exists())
KINDS = {"table": "parts.csv"}  # other kinds take a second or two each; add them to look for a fault


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_earlier_versions_are_exported(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_onnx: None
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(UPGRADE / "data", tmp_path, dirs_exist_ok=True)
    with tarfile.open(UPGRADE / DATES[0] / "runs.tar.xz") as archive:
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, [one for one in archive.getmembers() if one.name.startswith(f"runs/{kind}-")], **safe)
    run = fo.load(f"{kind}-1")
    package = exporting.export(run, tmp_path / "package").package
    same(package.predict(KINDS[kind]), fo.predict(run, KINDS[kind], device="cpu"))
    with pytest.raises(StoreError, match=f"{kind}-2 is stopped"):
        exporting.export(fo.load(f"{kind}-2"), tmp_path / "other")


# ---- rows that do not fit ----


def both_say(made: Exported, data: Any) -> str:
    with pytest.raises(DataError) as of_run:
        fo.predict(made.run, data, device="cpu", cache=None)
    with pytest.raises(DataError) as of_package:
        made.package().predict(data)
    assert str(of_run.value) == str(of_package.value)
    return str(of_package.value)


def test_rows_that_do_not_fit_are_named_as_by_the_run(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    table = exported("classes_table")
    rows = table.rows(3)
    without = {name: column for name, column in rows.items() if name != "job"}
    assert "'job'" in both_say(table, without) and "'job'" in both_say(table, pa.table(without))
    assert "'age'" in both_say(table, {**rows, "age": ["old", "young", "old"]})
    assert "'since'" in both_say(table, {**rows, "since": ["yesterday", None, None]})
    assert "differ in length" in both_say(table, {**rows, "age": [1.0]})
    several = exported("several")
    both_say(several, {"x": several.rows(2)["x"]})
    both_say(several, {**several.rows(2), "x": several.rows(2)["x"][:, :3]})
    both_say(several, {**several.rows(2), "kind": [0]})
    assert "token" in both_say(exported("sequences"), [[1, 2], [3, 99]])
    both_say(exported("sequences"), [[1], []])
    both_say(exported("chars"), ["to be ZZ"])
    both_say(exported("photos"), [b"no photo"])
    both_say(exported("images"), np.zeros((2, 7, 7, 3), np.uint8))
    both_say(table, str(tmp_path / "nowhere.parquet"))


def test_categories_that_training_did_not_have_are_answered_as_by_the_run(exported: Callable[[str], Exported]) -> None:
    made = exported("classes_table")
    rows = {**made.rows(3), "job": ["astronaut", "", None], "age": [None, float("nan"), 1e30]}
    same(made.package().predict(rows), fo.predict(made.run, rows, device="cpu", cache=None))


def test_no_rows(exported: Callable[[str], Exported]) -> None:
    for kind in ("classes_table", "several", "sequences", "photos"):
        both_say(exported(kind), exported(kind).rows(0))


def test_damage_is_json_free_of_tracebacks(command: Any, copied: Path) -> None:
    (copied / "program.json").write_text(json.dumps({}))
    code, out, err = command("why", copied)
    assert (code, out) == (1, "") and "program.json" in err and "Traceback" not in err
