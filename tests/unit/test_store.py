"""What is kept on disk: state as tensors and JSON, checkpoints that are whole or absent, run folders, locks, comparisons."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flatout.base.errors import DamagedCheckpoint, DamagedFile, NotARun, RunBusy, StoreError, UsageError
from flatout.base.files import read_json, write_json
from flatout.base.sealed import sealed
from flatout.base.tree import to_data, to_text
from flatout.store.checkpoints import Checkpoints
from flatout.store.compare import compare_doc, runs_doc
from flatout.store.lock import RunLock
from flatout.store.run_folder import RunFolder, all_runs, create, find, find_unfinished, open_run
from flatout.store.run_table import runs_table
from flatout.store.tensors import decode, encode, read_tensors, write_tensors

# ---- state ----


def tree() -> dict[str, Any]:
    shared = torch.arange(6.0).reshape(2, 3)
    return {
        "tied": [shared, shared],
        "numbers": {"step": 3, "loss": 0.1, "nan_free": True, "none": None, "name": "x"},
        "state": {0: {"moment": torch.ones(2, dtype=torch.bfloat16)}, 1: {}},
        "pair": (1, torch.tensor(5)),
        "strided": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "empty": torch.zeros(0, 3),
        "bytes": torch.arange(4, dtype=torch.uint8),
    }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b)) and a.dtype == b.dtype and a.stride() == b.stride()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b and type(a) is type(b))


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    document, tensors = encode(tree())
    write_tensors(tmp_path / "t.safetensors", tensors)
    back = decode(json.loads(json.dumps(document)), read_tensors(tmp_path / "t.safetensors"))
    assert equal(back, tree())
    assert back["tied"][0] is back["tied"][1], "written once"
    assert len(tensors) == 6


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.tensor([True, False]), "c": torch.arange(5), "d": torch.randn(2).half()}
    write_tensors(tmp_path / "t.safetensors", tensors)
    assert equal(load_file(tmp_path / "t.safetensors"), tensors)


def test_what_a_checkpoint_cannot_keep_is_named_by_its_place() -> None:
    with pytest.raises(StoreError, match=r"optimizer\.state\.2 is a set"):
        encode({"optimizer": {"state": [1, 2, {3}]}})
    with pytest.raises(StoreError, match="complex64"):
        write_tensors(Path("never"), {"x": torch.zeros(1, dtype=torch.complex64)})


def test_a_file_that_is_not_safetensors(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match="can't be read as safetensors"):
        read_tensors(tmp_path / "t")


# ---- files ----


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"n": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"n": 2})
    assert read_json(path) == {"n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


# ---- checkpoints ----


def save(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints.write(step, *encode({"step": step, "weight": torch.full((4,), float(step))}))


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert (checkpoints.steps(), checkpoints.load_latest(pytest.fail)) == ([], None)
    for step in (10, 9, 200):
        save(checkpoints, step)
    assert checkpoints.steps() == [9, 10, 200]
    found = checkpoints.load_latest(pytest.fail)
    assert found is not None and found[0] == found[1]["step"] == 200
    assert torch.equal(checkpoints.load(9)["weight"], torch.full((4,), 9.0))


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_named_and_passed_over(tmp_path: Path, name: str, harm: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    victim = save(checkpoints, 2) / name
    content = bytearray(victim.read_bytes())
    if harm == "remove":
        victim.unlink()
    elif harm == "cut":
        victim.write_bytes(content[:-20])
    else:
        content[-5] ^= 0xFF
        victim.write_bytes(content)
    told: list[tuple[int, str]] = []
    found = checkpoints.load_latest(lambda step, why: told.append((step, why)))
    assert found is not None and found[0] == 1
    assert [step for step, _ in told] == [2]
    assert "step-000000002" in told[0][1]
    with pytest.raises(DamagedCheckpoint):
        checkpoints.load(2)


def test_another_version_is_not_damage(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = save(checkpoints, 1) / "manifest.json"
    manifest.write_bytes(sealed({"format": 2, "sha256": {}}))
    with pytest.raises(StoreError, match="has checkpoint format 2, this flatout reads format 1") as error:
        checkpoints.load_latest(pytest.fail)
    assert not isinstance(error.value, DamagedCheckpoint)


def test_a_failed_write_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)

    def full(tensor: torch.Tensor) -> torch.Tensor:
        raise OSError(errno.ENOSPC, "No space left on device")

    for step in (1, 2):
        with pytest.raises(OSError, match="No space"):
            checkpoints.write(step, *encode({"w": torch.ones(2)}), to_host=full)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000000001"]
    assert checkpoints.load(1)["step"] == 1


def test_best_and_last_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 6):
        save(checkpoints, step)
        if step == 2:
            checkpoints.mark_best(2, "accuracy", 0.9)
        checkpoints.prune()
    assert checkpoints.steps() == [2, 4, 5]
    assert checkpoints.best() == {"step": 2, "metric": "accuracy", "value": 0.9}


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    half = tmp_path / ".writing-step-000000002"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    assert (checkpoints.being_written(), checkpoints.steps()) == (2, [1])
    assert checkpoints.sweep() == [half.name]
    assert (checkpoints.being_written(), checkpoints.steps()) == (None, [1])


# ---- run folders ----


def test_names_people_can_type(tmp_path: Path) -> None:
    names = [create(tmp_path / "runs", stem, "id", "0").name for stem in ("digits", "digits", "My Net!", "../..", "digits")]
    assert names == ["digits-1", "digits-2", "My-Net-1", "run-1", "digits-3"]


def test_a_name_in_use_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a-7").mkdir()
    (tmp_path / "a-9").write_text("a file")
    assert create(tmp_path, "a", "id", "0").name == "a-10"


def test_finding_a_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with pytest.raises(NotARun, match="there is no run in"):
        find(runs, "last")
    first, second = create(runs, "a", "id", "0"), create(runs, "b", "id", "0")
    (runs / "notes").mkdir()
    assert [folder.name for folder in all_runs(runs)] == ["a-1", "b-1"]
    assert find(runs, "a-1") == first
    assert find(runs, str(second.path)).path == second.path
    assert find(runs, "last") == second
    with pytest.raises(NotARun, match=r"no run named 'a-l' in .*; did you mean 'a-1'\?"):
        find(runs, "a-l")
    with pytest.raises(NotARun, match="is not a flatout run"):
        open_run(runs / "notes")


@pytest.mark.parametrize(
    ("status", "found"), [(None, True), ("stopped", True), ("failed", True), ("finished", False), ("diverged", False)]
)
def test_what_can_be_resumed(tmp_path: Path, status: str | None, found: bool) -> None:
    create(tmp_path, "other", "other identity", "0")
    folder = create(tmp_path, "a", "id", "0")
    if status:
        folder.write("result.json", {"status": status})
    assert folder.status == (status or "interrupted")
    assert find_unfinished(tmp_path, "id") == (folder if found else None)


def test_only_the_newest_of_an_identity_is_resumed(tmp_path: Path) -> None:
    create(tmp_path, "a", "id", "0")
    create(tmp_path, "a", "id", "0").write("result.json", {"status": "finished"})
    assert find_unfinished(tmp_path, "id") is None


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    folder = create(tmp_path, "a", "id", "0")
    assert not folder.begun
    with pytest.raises(StoreError, match=r"a-1 has no plan\.json"):
        folder.read("plan.json")
    folder.write_bytes("plan.json", b"{")
    with pytest.raises(DamagedFile, match=r"plan\.json is incomplete"):
        folder.read("plan.json")


def test_one_at_a_time(tmp_path: Path) -> None:
    folder = create(tmp_path, "a", "id", "0")
    with folder.locked():
        assert folder.status == "running"
        with pytest.raises(RunBusy, match=f"is being trained by process {os.getpid()}"):
            RunLock(folder.path).take()
        with pytest.raises(RunBusy), folder.locked():
            pytest.fail("two at once")
        assert folder.status == "running", "the refused one took nothing away"
    assert folder.status == "interrupted"
    with folder.locked():
        pass


# ---- comparison ----


def finished(runs: Path, stem: str, lr: float, **result: Any) -> RunFolder:
    folder = create(runs, stem, "id", "0")
    folder.write("recipe.json", {"lr": lr, "model": {"mlp": {"hidden": [8]}}})
    folder.write("plan.json", {"settings": {"precision": "fp32"}})
    folder.write("environment.json", {"torch": "2.13.0", "python": "3.11"})
    folder.write("result.json", {"status": "finished", **result})
    return folder


def test_compare_shows_what_differed_and_what_it_did(tmp_path: Path) -> None:
    a = finished(tmp_path, "a", 0.1, steps=10, samples_per_s=100.0, metrics={"accuracy": 0.9, "auc": None})
    b = finished(tmp_path, "b", 0.2, steps=10, samples_per_s=150.0, metrics={"accuracy": 0.0, "auc": None})
    b.write("environment.json", {"torch": "2.12.0", "python": "3.11"})
    said = to_data(compare_doc(a, b))
    assert said["differed"] == [{"key": "lr", "a": 0.1, "b": 0.2}]
    assert said["machine"] == [{"key": "torch", "a": "2.13.0", "b": "2.12.0"}]
    ratios = {row["key"]: row["ratio"] for row in said["outcome"]}
    assert ratios == {"status": None, "steps": 1.0, "samples_per_s": 1.5, "accuracy": 0.0}
    assert "samples_per_s" in to_text(compare_doc(a, b))


def test_a_run_without_a_result_is_listed(tmp_path: Path) -> None:
    finished(tmp_path, "a", 0.1, steps=10, samples_per_s=1234.5, train_seconds=61.0, metrics={"loss": 0.5, "auc": None})
    create(tmp_path, "b", "id", "0")
    text = to_text(runs_doc(tmp_path)).splitlines()
    assert [line.split()[:2] for line in text] == [["run", "status"], ["a-1", "finished"], ["b-1", "interrupted"]]
    assert "1.23k  1 min 01 s  loss 0.5" in text[1]


def test_compare_takes_any_number_of_runs(tmp_path: Path) -> None:
    runs = [
        finished(tmp_path, name, rate, steps=10, metrics={"accuracy": rate})
        for name, rate in (("a", 0.1), ("b", 0.2), ("c", 0.1))
    ]
    said = to_data(compare_doc(*runs))
    assert [said[letter] for letter in "abc"] == ["a-1", "b-1", "c-1"]
    assert said["differed"] == [{"key": "lr", "a": 0.1, "b": 0.2, "c": 0.1}]
    assert {"key": "accuracy", "a": 0.1, "b": 0.2, "c": 0.1} in said["outcome"]
    many = to_data(compare_doc(*runs * 10))
    assert many["ad"] == "c-1" and many["differed"][0]["ab"] == 0.1


def test_long_values_stay_within_a_screen_and_are_whole_in_json(tmp_path: Path) -> None:
    fitted = [[{"name": f"column {number}", "mean": scale * number} for number in range(20)] for scale in (1.5, 2.5)]
    a, b = finished(tmp_path, "a", 0.1), finished(tmp_path, "b", 0.1)
    for folder, prepare in ((a, fitted[0]), (b, fitted[1])):
        folder.write("recipe.json", {"data": {"prepare": prepare}})
    for doc in (compare_doc(a, b), runs_table(tmp_path, None, ["data.prepare"], [])):
        assert max(map(len, to_text(doc).splitlines())) < 140
    assert to_data(compare_doc(a, b))["differed"] == [{"key": "data.prepare", "a": fitted[0], "b": fitted[1]}]


def names_of(said: Any) -> list[str]:
    return [row["name"] for row in said["runs"]]


def test_runs_are_sorted_best_first_and_filtered(tmp_path: Path) -> None:
    for name, rate, accuracy in (("a", 0.1, 0.5), ("b", 0.01, 0.9), ("c", 0.5, None), ("d", 0.02, float("nan"))):
        finished(tmp_path, name, rate, steps=10, metrics={"accuracy": accuracy, "loss": accuracy})
    create(tmp_path, "e", "id", "0")  # began, and has no recipe yet
    best = to_data(runs_table(tmp_path, "accuracy", ["lr"], []))
    assert names_of(best) == ["b-1", "a-1", "c-1", "d-1", "e-1"]
    assert best["runs"][0] == {"name": "b-1", "status": "finished", "accuracy": 0.9, "lr": 0.01}
    assert names_of(to_data(runs_table(tmp_path, "loss", [], [])))[:2] == ["a-1", "b-1"]  # the lowest is the best
    assert names_of(to_data(runs_table(tmp_path, "lr", [], [])))[:4] == ["b-1", "d-1", "a-1", "c-1"]
    assert names_of(to_data(runs_table(tmp_path, "lr", [], [], reverse=True)))[0] == "c-1"
    for where, wanted in (
        ("lr>1e-2", "acd"), ("lr >= 0.01", "abcd"), ("lr<0.1", "bd"), ("accuracy!=0.5", "bd"), ("lr=0.10", "a"),
        ("status=finished", "abcd"), ("name == 'b-1'", "b"), ("status!=finished", "e"),
    ):  # fmt: skip
        assert names_of(to_data(runs_table(tmp_path, None, [], [where]))) == [f"{name}-1" for name in wanted], where
    assert names_of(to_data(runs_table(tmp_path, None, [], ["lr>0.01", "lr<0.2"]))) == ["a-1", "d-1"]
    text = to_text(runs_table(tmp_path, "accuracy", [], ["lr>0.01"]))
    assert "lr" in text.splitlines()[0] and "2 of 5 runs left out" in text  # what differs is shown unasked
    for how in ({"sort": "acuracy"}, {"show": ["lrr"]}, {"where": ["lr"]}, {"where": ["lr>fast"]}, {"where": ["nothing>1"]}):
        with pytest.raises(UsageError):
            runs_table(tmp_path, how.get("sort"), how.get("show", []), how.get("where", []))  # type: ignore[arg-type]
