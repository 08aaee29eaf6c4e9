"""Content of inputs: never a stale digest, and no file is read twice that did not change."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from blake3 import blake3

from flatout.base.errors import DataError
from flatout.pipelines.identity import remembered
from flatout.pipelines.identity.inputs import InputHashes


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read, in order."""
    found: list[str] = []
    digests = remembered.digests_of_files

    def counted(files: dict[str, str]) -> object:
        found.extend(files)
        return digests(files)

    monkeypatch.setattr(remembered, "digests_of_files", counted)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of files that were written a while ago."""
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.csv", "b.csv", "deep/c.csv"):
        (folder / name).write_text(name * 100)
    time.sleep(0.15)
    return folder


def test_a_file_has_the_blake3_of_its_content(tmp_path: Path, data: Path) -> None:
    found = InputHashes(tmp_path / "cache").of(data / "a.csv")
    assert found.digest == blake3(b"a.csv" * 100).hexdigest() and found.bytes == 500 and found.files == 1


def test_what_did_not_change_is_not_read_again(tmp_path: Path, data: Path, reads: list[str]) -> None:
    first = InputHashes(tmp_path / "cache").of(data)
    assert sorted(reads) == ["a.csv", "b.csv", "deep/c.csv"] and first.files == 3
    reads.clear()
    assert InputHashes(tmp_path / "cache").of(data) == first and reads == []
    (data / "b.csv").write_text("new")
    assert InputHashes(tmp_path / "cache").of(data) != first and reads == ["b.csv"]


@pytest.mark.parametrize("change", ["content", "same time", "name", "new", "gone", "moved", "empty folder"])
def test_every_change_of_a_folder_changes_its_digest(tmp_path: Path, data: Path, change: str) -> None:
    first = InputHashes(tmp_path / "cache").of(data)
    target = data / "a.csv"
    if change == "content":
        target.write_text("b.csv" * 100)
    elif change == "same time":  # as `cp -p` and `rsync -t` do
        before = target.stat()
        target.write_text("b.csv" * 100)
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "name":
        target.rename(data / "z.csv")
    elif change == "new":
        (data / "new").touch()
    elif change == "gone":
        target.unlink()
    elif change == "moved":
        target.rename(data / "deep" / "a.csv")
    else:
        (data / "empty").mkdir()
    assert InputHashes(tmp_path / "cache").of(data).digest != first.digest


def test_times_alone_and_the_folders_place_change_nothing(tmp_path: Path, data: Path) -> None:
    first = InputHashes(tmp_path / "cache").of(data)
    os.utime(data / "a.csv")
    data.rename(tmp_path / "elsewhere")
    assert InputHashes(tmp_path / "cache").of(tmp_path / "elsewhere").digest == first.digest


def test_a_file_that_changed_a_moment_ago_is_not_remembered(tmp_path: Path, data: Path, reads: list[str]) -> None:
    (data / "a.csv").write_text("just now")
    InputHashes(tmp_path / "cache").of(data)
    reads.clear()
    InputHashes(tmp_path / "cache").of(data)
    assert reads == ["a.csv"]


def test_after_the_clock_was_set_back_everything_is_read_again(
    tmp_path: Path, data: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = InputHashes(tmp_path / "cache").of(data)
    reads.clear()
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - 3_600_000_000_000)
    hashes = InputHashes(tmp_path / "cache")
    assert hashes.of(data) == first and len(reads) == 3
    assert len(hashes.notes) == 1 and "clock" in hashes.notes[0]
    reads.clear()
    assert InputHashes(tmp_path / "cache").of(data) == first and len(reads) == 3  # their times lie ahead: not trusted yet


@pytest.mark.parametrize("written", [b"", b"{", b"[]", b'{"format": 1, "clock_ns": "x", "files": 3}', b"\xff\xfe"])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, data: Path, reads: list[str], written: bytes) -> None:
    first = InputHashes(tmp_path / "cache").of(data)
    (memory,) = (tmp_path / "cache/inputs").iterdir()
    memory.write_bytes(written)
    reads.clear()
    assert InputHashes(tmp_path / "cache").of(data) == first and len(reads) == 3


def test_a_cache_that_can_not_be_written_is_said(tmp_path: Path, data: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/inputs").write_text("a file is in the way")
    hashes = InputHashes(tmp_path / "cache")
    assert hashes.of(data).files == 3 and "not remembered" in hashes.notes[0]


def test_what_can_not_be_read_is_an_error_that_names_it(tmp_path: Path, data: Path) -> None:
    hashes = InputHashes(tmp_path / "cache")
    with pytest.raises(DataError, match=r"none\.csv"):
        hashes.of(data / "none.csv")
    (data / "dangling").symlink_to("nowhere")
    with pytest.raises(DataError, match="link to nothing"):
        hashes.of(data)
    (data / "dangling").unlink()
    (data / "deep" / "up").symlink_to(data)
    with pytest.raises(DataError, match="link to a folder"):
        hashes.of(data)
    (data / "deep" / "up").unlink()
    os.mkfifo(data / "pipe")
    with pytest.raises(DataError, match="neither"):
        hashes.of(data)


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.pipelines.identity import hashing

    def grows(file: object, size: int, threads: int) -> str:
        with (data / "a.csv").open("a") as more:
            more.write("x")
        return "0" * 64

    monkeypatch.setattr(hashing, "_read", grows)
    with pytest.raises(DataError, match="changes while it is read"):
        InputHashes(tmp_path / "cache").of(data / "a.csv")
