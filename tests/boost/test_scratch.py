"""What a trial writes, deletes and renames: nothing of it is seen outside of its scratch folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flatout.boost.scratch import Scratch
from flatout.doctor.patches import Patches


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with things of a person's."""
    folder = tmp_path / "home"
    (folder / "runs").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    torch.save({"weight": torch.ones(2)}, folder / "model.pt")
    return folder


@pytest.fixture
def led(tmp_path: Path, home: Path) -> Iterator[Path]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    patches = Patches()
    Scratch(scratch).install(patches)
    yield scratch
    patches.restore()


def state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_trial_changes_nothing(tmp_path: Path, home: Path) -> None:
    before = state(home)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    patches = Patches()
    Scratch(scratch).install(patches)
    try:
        (home / "log.txt").write_text("step 1")
        with open(home / "notes.txt", "a") as file:
            file.write(" and more")
        torch.save({"weight": torch.zeros(2)}, home / "model.pt")
        os.makedirs(home / "runs" / "1", exist_ok=True)
        os.remove(home / "notes.txt")
        shutil.rmtree(home / "runs")
        os.rename(home / "log.txt", home / "log.old")
        os.close(os.open(home / "raw.bin", os.O_WRONLY | os.O_CREAT))
    finally:
        patches.restore()
    assert state(home) == before
    assert (home / "runs").is_dir() and not (home / "runs" / "1").exists()


def test_what_was_written_is_read_back(led: Path, home: Path) -> None:
    (home / "log.txt").write_text("step 1")
    assert (home / "log.txt").read_text() == "step 1" and os.path.exists(home / "log.txt")
    with open(home / "notes.txt", "a") as file:
        file.write(" and more")
    with open(home / "notes.txt") as file:
        assert file.read() == "mine and more"
    torch.save({"weight": torch.zeros(2)}, home / "model.pt")
    assert torch.load(home / "model.pt")["weight"].sum() == 0


def test_what_was_there_is_read_as_it_is(led: Path, home: Path) -> None:
    assert (home / "notes.txt").read_text() == "mine"
    assert torch.load(home / "model.pt")["weight"].sum() == 2
    with pytest.raises(FileExistsError):
        os.mkdir(home / "runs")
    with pytest.raises(FileNotFoundError):
        (home / "nothing.txt").read_text()


def test_temporary_folders_can_be_removed(led: Path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "inside").mkdir()
        Path(folder, "inside", "file").write_text("x")
    assert not os.path.exists(folder)
