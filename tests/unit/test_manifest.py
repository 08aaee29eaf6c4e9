"""Every file of a run is what was written, or it is said which one is not."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Command

import flatout as fo
from flatout.base.errors import DamagedCheckpoint, DamagedFile, FlatoutError, MissingFile, StoreError
from flatout.base.events import EventLog, read_events
from flatout.base.manifest import Manifest
from flatout.base.sealed import opened, read_lines, sealed
from flatout.store.checkpoints import Checkpoints
from flatout.store.run_folder import RunFolder, all_runs, create, find, find_unfinished
from flatout.store.tensors import decode, encode, file_digest, write_tensors

# ---- lines with a checksum ----


def test_every_flipped_bit_of_a_line_is_found() -> None:
    line = sealed({"kind": "step", "loss": 0.25, "name": "größe"})
    assert opened(line) == {"kind": "step", "loss": 0.25, "name": "größe"}
    for place in range(len(line) * 8):
        flipped = bytearray(line)
        flipped[place // 8] ^= 1 << place % 8
        try:
            found = opened(bytes(flipped))
        except ValueError:
            continue
        assert found.items() >= opened(line).items(), "only its checksum's own name may change unseen"


def test_a_flipped_bit_in_the_events_is_told_and_a_torn_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for step in range(3):
            log.emit("step", step=step)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # killed while it wrote
    assert [event["step"] for event in read_events(path)] == [0, 1]
    with EventLog(path) as log:
        log.emit("resumed", step=1)
    assert [event["kind"] for event in read_events(path)] == ["step", "step", "resumed"]
    seen = path.read_bytes()
    for place in range(0, len(seen) * 8, 3):
        flipped = bytearray(seen)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        events = list(read_events(path))
        damaged = [event for event in events if event.get("kind") == "damaged"]
        expected = [{"kind": "step", "step": 0}, {"kind": "step", "step": 1}, {"kind": "resumed", "step": 1}]
        same = [event for event in expected if any(event.items() <= one.items() for one in events)] == expected
        assert damaged or same, f"bit {place} changed what is shown without a word"
        assert all("line" in event["why"] for event in damaged)


def test_events_from_before_there_were_checksums(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "started"}\n{"kind": "step", "step": 1}\n{"kind": "st')
    assert [event["kind"] for event in read_events(path)] == ["started", "step"]
    with EventLog(path) as log:
        log.emit("resumed", step=1)
    assert [event["kind"] for event in read_events(path)] == ["started", "step", "resumed"]


# ---- the manifest ----


def test_a_kill_at_any_moment_leaves_a_folder_that_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call to the system is the last one, once."""
    manifest = Manifest(tmp_path)
    manifest.begin()
    manifest.write("result.json", b"before")
    calls = ("open", "write", "fsync", "replace")

    class Killed(BaseException):
        pass

    for last in range(40):
        left = [last]

        def dies(name: str, plain: Any, left: list[int] = left) -> Any:
            def call(*args: Any, **named: Any) -> Any:
                if left[0] == 0:
                    if name == "write":
                        plain(args[0], args[1][: len(args[1]) // 2])
                    raise Killed
                left[0] -= 1
                return plain(*args, **named)

            return call

        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, dies(name, getattr(os, name)))
            try:
                manifest.write("result.json", f"after {last}".encode())
                done = True
            except Killed:
                done = False
        assert manifest.read("result.json").startswith((b"before", b"after"))
        assert manifest.damage() is None
        if done:
            break
        manifest.write("result.json", b"before")  # whoever comes after it goes on
    assert done, "it takes fewer calls than that"


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path, lambda name: f"mend {name}")
    assert not manifest.exists
    (tmp_path / "old.json").write_text("{}")
    assert manifest.read("old.json") == b"{}", "a folder from before there were manifests"
    manifest.begin(identity="x")
    manifest.write("a.json", b"{}")
    (tmp_path / "a.json").write_bytes(b"{]")
    with pytest.raises(DamagedFile, match=r"a\.json is damaged: it does not match its checksum; mend a\.json"):
        manifest.read("a.json")
    (tmp_path / "a.json").write_bytes(b"{")
    with pytest.raises(DamagedFile, match="has 1 bytes instead of"):
        manifest.check("a.json")
    with pytest.raises(DamagedFile, match="is not listed"):
        manifest.read("old.json")
    with pytest.raises(MissingFile):
        manifest.read("none.json")
    lines = manifest.path.read_bytes().replace(b"a.json", b"b.json")
    manifest.path.write_bytes(lines)
    with pytest.raises(DamagedFile, match=r"can't be checked, because line 2 of .* does not match its checksum"):
        manifest.read("a.json")
    assert manifest.about["identity"] == "x"
    assert [bool(line.damage) for line in read_lines(manifest.path, unsealed=False)] == [False, True]


# ---- a run of which a bit was flipped ----


@pytest.fixture
def finished(desk: Path, flatout: Command) -> Path:
    assert flatout("run", "table.yaml", "budget=2 epochs", "--set", "checkpoint_every=1 steps", "--planning", "off").code == 0
    return desk / "runs" / "table-1"


def outputs(flatout: Command) -> list[Any]:
    commands = (["runs", "--json"], ["runs", "show", "table-1", "--json"], ["runs", "compare", "table-1", "table-1"],
                ["evaluate", "table-1", "--json"])  # fmt: skip
    return [flatout(*command) for command in commands]


def test_a_flipped_bit_anywhere_is_told_or_changes_nothing(finished: Path, flatout: Command) -> None:
    expected, chance = outputs(flatout), random.Random(0)
    files = [path for path in sorted(finished.rglob("*")) if path.is_file() and "checkpoints" not in path.parts]
    assert {"manifest.jsonl", "run.json", "plan.json", "data.json", "model.safetensors"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        if not content:
            continue
        flipped = bytearray(content)
        place = chance.randrange(len(content) * 8)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        for before, after in zip(expected, outputs(flatout), strict=True):
            told = path.name in after.out + after.err
            assert after == before or told, f"{path.name}, bit {place}: {after}"
            assert "Traceback" not in after.err
        path.write_bytes(content)
    assert outputs(flatout) == expected


def test_damaged_weights_are_not_used(finished: Path, flatout: Command) -> None:
    weights = finished / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 0x10
    weights.write_bytes(content)
    for command in (["evaluate", "last"], ["predict", "last", "train.npz"]):
        answer = flatout(*command)
        assert answer.code == 1
        assert "model.safetensors is damaged: it does not match its checksum" in answer.err
    assert flatout("runs", "check", "last").code == 1
    with pytest.raises(DamagedFile, match=r"model\.safetensors"):
        fo.load("last").model()
    weights.rename(finished / "moved")
    assert flatout("evaluate", "last").code == 0, "with the weights of a checkpoint, as it said"
    (finished / "moved").rename(weights)
    assert flatout("runs", "check", "table-1", "--accept").code == 0
    assert flatout("evaluate", "last").code == 0


def test_runs_from_before_there_were_manifests_are_read(finished: Path, flatout: Command) -> None:
    expected = outputs(flatout)[3]
    (finished / "manifest.jsonl").unlink()
    answer = flatout("evaluate", "last")
    assert answer.code == 1
    assert "manifest.jsonl is missing, so the other files can't be checked" in answer.err
    about = json.loads((finished / "run.json").read_text())
    (finished / "run.json").write_text(json.dumps({**about, "flatout_run": 1}))
    assert outputs(flatout)[3] == expected
    assert "unverified" in flatout("runs", "show", "last").out


def test_a_run_that_goes_on_from_before_there_were_manifests(tmp_path: Path) -> None:
    folder = create(tmp_path, "a", "id", "0")
    folder.write("plan.json", {})
    folder.manifest.path.unlink()
    (folder.path / "run.json").write_text(json.dumps({**json.loads((folder.path / "run.json").read_text()), "flatout_run": 1}))
    folder.adopt()
    assert folder.about["flatout_run"] == 2
    assert folder.check() == {}
    (folder.path / "plan.json").write_text("[]")
    assert "plan.json is damaged" in folder.check()["plan.json"]


# ---- which run goes on ----


def harm(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def begun(runs: Path, identity: str = "id", status: str | None = None) -> RunFolder:
    folder = create(runs, "a", identity, "0")
    folder.write("plan.json", {})
    if status is not None:
        folder.write("result.json", {"status": status})
    return folder


def test_a_damaged_run_is_never_passed_over_in_silence(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    harm(folder.path / "run.json")
    with pytest.raises(DamagedFile, match=r"a-1 can't be read but may be an unfinished run .*run\.json .*--fresh"):
        find_unfinished(tmp_path, "id")
    with pytest.raises(StoreError, match=r"can't tell which run is the last.*run\.json"):
        find(tmp_path, "last")
    assert find_unfinished(tmp_path, "another") is None, "the manifest knows whose it is"
    harm(folder.manifest.path)
    folder.manifest.path.write_bytes(b"x\n")
    with pytest.raises(DamagedFile, match="may be an unfinished run"):
        find_unfinished(tmp_path, "another")
    assert begun(tmp_path).name == "a-2"


def test_a_damaged_run_that_had_ended_keeps_nobody_from_starting(tmp_path: Path) -> None:
    folder = begun(tmp_path, status="finished")
    harm(folder.path / "run.json")
    assert find_unfinished(tmp_path, "id") is None
    later = begun(tmp_path)
    harm(begun(tmp_path, "another").path / "run.json")
    assert find_unfinished(tmp_path, "id") == later


def test_nobody_knows_whether_a_run_with_a_damaged_result_has_ended(tmp_path: Path) -> None:
    folder = begun(tmp_path, status="finished")
    harm(folder.path / "result.json")
    assert folder.status == "damaged"
    with pytest.raises(DamagedFile, match=r"result\.json .* if the run had not finished, delete"):
        find_unfinished(tmp_path, "id")


def test_a_damaged_plan_is_said(finished: Path, flatout: Command) -> None:
    (finished / "result.json").unlink()
    (finished / "model.safetensors").unlink()
    harm(finished / "plan.json")
    answer = flatout("run", "table.yaml", "budget=2 epochs", "--set", "checkpoint_every=1 steps", "--planning", "off")
    assert answer.code == 1
    assert "plan.json is damaged" in answer.err
    assert [path.name for path in finished.parent.iterdir()] == ["table-1"]


def test_files_that_are_not_what_they_should_be(finished: Path) -> None:
    """Whoever wrote them also wrote the checksums."""
    folder = RunFolder(finished)
    for name in ("plan.json", "data.json", "origin.json", "result.json", "recipe.json", "run.json"):
        right = folder.manifest.read(name)
        for content in ("[]", "{}", '{"settings": 3}', "[" * 5000, '"x"', '{"settings": {"device": 3}}'):
            folder.write_bytes(name, content.encode())
            for read in (lambda: fo.load("table-1").model(), lambda: fo.load("table-1").explain()):
                try:
                    read()
                except FlatoutError as error:
                    assert name in str(error) or (name == "recipe.json" and "recipe" in str(error))
                else:
                    assert name != "run.json"
        folder.write_bytes(name, right)


def test_the_newest_run_is_told_without_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path, status="finished")
    monkeypatch.setattr("time.time", lambda: 1000.0)  # somebody set it back
    later = begun(tmp_path)
    assert find_unfinished(tmp_path, "id") == later
    assert [folder.name for folder in all_runs(tmp_path)] == ["a-1", "a-2"]


# ---- state that nobody wrote ----


def crafted(folder: Path, state: Any, tensors: dict[str, torch.Tensor] | None = None) -> Checkpoints:
    """A checkpoint whose checksums are right."""
    checkpoints = Checkpoints(folder)
    aside = checkpoints.begin(1)
    digest = write_tensors(aside / "state.safetensors", tensors or {"w": torch.arange(4.0)})
    checkpoints.finish(1, state, {"state.safetensors": digest})
    return checkpoints


def deep(levels: int) -> Any:
    node: Any = 1
    for _ in range(levels):
        node = [node]
    return node


@pytest.mark.parametrize(
    "state",
    [
        {"$tensor": "v"}, {"$tensor": 3}, {"$tensor": ["w"]}, {"$tuple": 3}, {"$items": [[1]]}, {"$items": [[[1], 2]]},
        {"$items": {"a": 1}}, {"$strange": 1}, deep(500), {"$tensor": "w", "stride": [0]}, {"$tensor": "w", "stride": [-1]},
        {"$tensor": "w", "stride": [1, 1]}, {"$tensor": "w", "stride": "1"}, {"$tensor": "w", "stride": [True]},
    ],
)  # fmt: skip
def test_a_state_that_nobody_wrote(tmp_path: Path, state: Any) -> None:
    with pytest.raises(DamagedCheckpoint, match="step-000000001"):
        crafted(tmp_path, {"w": state}).load(1)


def test_a_stride_that_asks_for_more_memory_than_there_is(tmp_path: Path) -> None:
    state = crafted(tmp_path, {"w": {"$tensor": "w", "stride": [1 << 50]}}).load(1)
    assert torch.equal(state["w"], torch.arange(4.0))
    overlapping = {"w": {"$tensor": "w", "stride": [1, 1]}}
    with pytest.raises(DamagedCheckpoint, match="overlap"):
        crafted(tmp_path, overlapping, {"w": torch.ones(2, 2)}).load(1)
    column = torch.arange(300.0).reshape(3, 100)[:, 7]
    document, tensors = encode({"column": column})
    assert torch.equal(decode(document, tensors)["column"], column)


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 60]}},
        {"w": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}},
        {"w": {"dtype": "X", "shape": [4], "data_offsets": [0, 16]}},
        {"w": 3},
    ],
)
def test_a_header_that_lies(tmp_path: Path, header: Any) -> None:
    checkpoints = crafted(tmp_path, {"w": {"$tensor": "w"}})
    path = checkpoints.path(1) / "state.safetensors"
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"\0" * 16)
    manifest = json.loads((path.parent / "manifest.json").read_text())
    manifest["sha256"]["state.safetensors"] = file_digest(path)
    del manifest["crc"]
    (path.parent / "manifest.json").write_bytes(sealed(manifest))
    with pytest.raises(DamagedCheckpoint, match="can't be read as safetensors"):
        checkpoints.load(1)


@pytest.mark.parametrize("listed", [{"../run.json": "0"}, ["state.json"], {"": ""}, 3])
def test_a_manifest_that_names_other_files(tmp_path: Path, listed: Any) -> None:
    checkpoints = crafted(tmp_path, {})
    (checkpoints.path(1) / "manifest.json").write_bytes(sealed({"format": 1, "sha256": listed}))
    with pytest.raises(DamagedCheckpoint):
        checkpoints.load(1)


def test_a_damaged_mark_of_the_best_is_said(tmp_path: Path) -> None:
    checkpoints = crafted(tmp_path, {})
    checkpoints.mark_best(1, "accuracy", 0.5)
    assert checkpoints.best() == {"step": 1, "metric": "accuracy", "value": 0.5}
    harm(tmp_path / "best.json")
    with pytest.raises(DamagedFile, match=r"best\.json"):
        checkpoints.best()
    assert not checkpoints.is_marked({"step": 1, "metric": "accuracy", "value": 0.5})
    checkpoints.prune()
    assert checkpoints.steps() == [1]


def test_a_checkpoint_of_another_model_does_not_fit(finished: Path, flatout: Command) -> None:
    command = ("run", "table.yaml", "budget=2 epochs", "--set", "checkpoint_every=1 steps", "--planning", "off")
    folder = RunFolder(finished)
    (finished / "result.json").unlink()
    (finished / "model.safetensors").unlink()
    checkpoints = folder.checkpoints()
    step = checkpoints.steps()[-1]
    for key, value in {"model": {}, "progress": {"step": "x"}, "optimizer": 3, "topology": None}.items():
        state = checkpoints.load(step)
        document, tensors = encode({**state, key: value})
        checkpoints.write(step, document, tensors)
        answer = flatout(*command)
        assert answer.code == 1
        assert f"{checkpoints.path(step).name} does not fit this run" in answer.err, answer.err
        document, tensors = encode(state)
        checkpoints.write(step, document, tensors)
    assert flatout(*command).code == 0
