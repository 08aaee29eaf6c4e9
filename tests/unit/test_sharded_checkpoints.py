"""Checkpoints of a state that is spread over processes: written by four, read by any number; faults on one of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sharded_ranks import (
    KILLED,
    blank,
    differences,
    export_all,
    kept,
    load,
    load_latest,
    load_trained,
    load_whole,
    ranks,
    read_by_torch_alone,
    save,
    save_beside_training,
    save_on_a_full_disk,
    save_to_two_disks,
    save_trained,
    save_until_killed,
    save_what_cannot_be_kept,
    save_with_one_that_does_not_come,
    trained,
    whole_tree,
)

from flatout.base.errors import DamagedCheckpoint, StoreError
from flatout.base.files import read_json
from flatout.store.checkpoints import Checkpoints
from flatout.store.sharded import ShardedCheckpoints, snapshot
from flatout.store.sharded_export import export
from flatout.store.sharded_files import TensorPart, share_out
from flatout.store.sharded_peers import Peers
from flatout.store.sharded_trees import merged
from flatout.store.tensors import encode, write_tensors
from flatout.world.world import World

FOUR: list[dict[str, int]] = [
    {"shard": 4}, {"data": 2, "shard": 2}, {"shard": 2, "tensor": 2}, {"pipeline": 2, "shard": 2}, {"tensor": 4}, {},
]  # fmt: skip
WAY_OUT = "free some disk space, then run the same command to resume from the last checkpoint"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By four ranks on six meshes; and once, step 7, by one process."""
    folder = tmp_path_factory.mktemp("saved")
    ranks(4, save, folder, FOUR)
    Checkpoints(folder).write(7, *encode(whole_tree(7)))
    return folder


def test_one_process_has_all_of_it(saved: Path) -> None:
    checkpoints = Checkpoints(saved)
    assert checkpoints.steps() == [1, 2, 3, 4, 5, 6, 7]
    for step in checkpoints.steps():
        found = checkpoints.load(step)
        assert differences(whole_tree(step), found) == []
        assert found["model"]["front.tied"] is found["model"]["front.even"], "written once"


def test_one_process_fills_what_it_has(saved: Path) -> None:
    checkpoints = ShardedCheckpoints(Checkpoints(saved), Peers(World()))
    for step in (1, 4, 7):
        target = blank(whole_tree(step))
        found = checkpoints.load(step, into=target)
        assert differences(whole_tree(step), found) == []
        assert found["model"]["photo"] is target["model"]["photo"]
        target["model"]["front.tied"] = target["model"]["front.even"].clone()  # tied when it was kept, apart now
        target["optimizer"] = {"state": {}, "groups": []}  # which has not made its state yet
        found = checkpoints.load(step, into=blank(target))
        assert differences(whole_tree(step), found) == [], "what has no place comes whole"


@pytest.mark.parametrize(
    ("size", "layouts"),
    [
        (2, [{"shard": 2}, {"tensor": 2}, {"pipeline": 2}, {}]),
        (4, FOUR),
        (8, [{"shard": 8}, {"data": 2, "shard": 2, "tensor": 2}, {"pipeline": 2, "shard": 4}]),
    ],
)
def test_any_number_of_ranks_reads_it(saved: Path, size: int, layouts: list[dict[str, int]]) -> None:
    assert ranks(size, load, saved, layouts) == [[]] * size


def test_each_rank_reads_it_whole(saved: Path) -> None:
    assert ranks(2, load_whole, saved) == [[], []]


def test_no_file_is_a_pickle(saved: Path) -> None:
    files = sorted(path for path in saved.rglob("*") if path.is_file())
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for path in files:
        read_json(path) if path.suffix == ".json" else load_file(path)
    shards = sorted(path.name for path in (saved / "step-000000002").glob("*.safetensors"))
    assert shards == [f"shard-0000{n}-model-00001-of-00001.safetensors" for n in (1, 2)], "of replicas the first writes"


def test_one_process_writes_what_it_always_wrote(tmp_path: Path) -> None:
    ShardedCheckpoints(Checkpoints(tmp_path / "a"), Peers(World())).write(3, snapshot(whole_tree(3)))
    Checkpoints(tmp_path / "b").write(3, *encode(whole_tree(3)))
    for name in ("state.safetensors", "state.json", "manifest.json"):
        assert (tmp_path / "a/step-000000003" / name).read_bytes() == (tmp_path / "b/step-000000003" / name).read_bytes()
    export(tmp_path / "w", whole_tree(3)["model"], Peers(World()))
    write_tensors(tmp_path / "v", whole_tree(3)["model"])
    assert (tmp_path / "w").read_bytes() == (tmp_path / "v").read_bytes()


def test_torchs_own_reader_and_writer(tmp_path: Path) -> None:
    assert ranks(4, read_by_torch_alone, tmp_path) == [[]] * 4


def test_real_engines(tmp_path: Path) -> None:
    """FSDP2 alone, over replicas, and over tensor parallelism; AdamW's state with it."""
    ranks(4, save_trained, tmp_path, [{"shard": 4}, {"data": 2, "shard": 2}, {"shard": 2, "tensor": 2}])
    assert ranks(2, load_trained, tmp_path, {"shard": 2}) == [[], []]
    expected = kept(*trained(World(), {}))
    for step in (1, 2, 3):
        found = Checkpoints(tmp_path).load(step)
        for name, tensor in encode(expected)[1].items():
            torch.testing.assert_close(encode(found)[1][name], tensor, rtol=1e-5, atol=1e-6)


# ---- beside a loop ----


def test_a_thread_writes_while_the_loop_talks(tmp_path: Path) -> None:
    assert ranks(2, save_beside_training, tmp_path) == [[], []]
    assert differences(whole_tree(1), Checkpoints(tmp_path).load(1)) == []


# ---- faults ----


@pytest.mark.parametrize("victim", [0, 2])
def test_a_full_disk_on_one_rank(tmp_path: Path, victim: int) -> None:
    said = ranks(4, save_on_a_full_disk, tmp_path, victim)
    assert said == [["nothing", *[f"StoreError: rank {victim}: File too large"] * 2, "nothing"]] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000001", "step-000000003"]
    assert differences(whole_tree(1), Checkpoints(tmp_path).load(1)) == []


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_in_the_middle(tmp_path: Path, victim: int) -> None:
    said = ranks(4, save_until_killed, tmp_path, victim)
    gone = f"StoreError: rank {victim} is gone: its process ended, or its machine can't be reached"
    assert said == [KILLED if rank == victim else [gone, gone] for rank in range(4)]
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.sweep() == ([".writing-step-000000002"] if victim == 0 else [])
    assert checkpoints.steps() == [1]
    assert differences(whole_tree(1), checkpoints.load(1)) == []


def test_parts_that_do_not_make_the_whole() -> None:
    half = TensorPart("w", "float32", [4], [0], [2])
    with pytest.raises(StoreError, match="the parts of w on all ranks are not the whole tensor: 2 elements are missing"):
        share_out([[half], [half]], ["w"])
    with pytest.raises(StoreError, match="the parts of v on all ranks are not the whole tensor"):
        share_out([[half]], ["v"])


def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    assert ranks(2, save_with_one_that_does_not_come, tmp_path) == [["StoreError: rank 1 did not answer within 1 s"], [""]]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_not_all_see(tmp_path: Path) -> None:
    said = ranks(2, save_to_two_disks, tmp_path)
    assert said[0] == said[1]
    assert said[0][0].startswith(f"StoreError: rank 1: {tmp_path / '1'} is not the folder that rank 0 writes to")


def test_what_cannot_be_kept_is_said_on_all_ranks(tmp_path: Path) -> None:
    said = ranks(2, save_what_cannot_be_kept, tmp_path)
    assert said[0] == said[1]
    differing, partial, dtype, steps, shape = said[0]
    assert "w is float32 [2] on rank 0 and float32 [3] on rank 1" in differing
    assert "rank 0: a.w is a partial sum over several ranks" in partial
    assert "w has dtype torch.complex64" in dtype
    assert "want to save different steps: [0, 1]" in steps
    assert shape.startswith("StoreError: rank 0: w has shape [2] in") and "[3] here: the checkpoint does not fit" in shape


def test_damaged_ones_are_named_and_the_one_before_is_used(saved: Path, tmp_path: Path) -> None:
    harms = ["flip", "cut", "remove", "stranger", "state.json", "manifest.json"]
    for step in range(1, len(harms) + 2):
        shutil.copytree(saved / "step-000000001", tmp_path / f"step-{step:09d}")
    for step, harm in enumerate(harms, 2):
        victim = (
            tmp_path / f"step-{step:09d}" / (harm if harm.endswith("json") else "shard-00003-model-00001-of-00001.safetensors")
        )
        content = bytearray(victim.read_bytes())
        if harm == "remove":
            victim.unlink()
        elif harm == "cut":
            victim.write_bytes(content[:-20])
        elif harm == "stranger":
            (victim.parent / "shard-00009-model-00001-of-00001.safetensors").write_bytes(content)
        else:
            content[-7] ^= 0xFF
            victim.write_bytes(content)
    first, second = ranks(2, load_latest, tmp_path, {"shard": 2})
    assert first == second
    step, wrong, told = first
    assert (step, wrong) == (1, [])
    assert [step for step, _ in told] == [7, 6, 5, 4, 3, 2]
    assert all(f"step-{step:09d}" in why for step, why in told)
    assert "shard-00003-model-00001-of-00001.safetensors does not match its checksum" in told[-1][1]
    assert "files that do not belong to it: shard-00009-model-00001-of-00001.safetensors" in told[2][1]
    for step in range(2, 8):
        with pytest.raises(DamagedCheckpoint):
            Checkpoints(tmp_path).load(step)


# ---- export ----


def test_one_file_of_whole_weights(tmp_path: Path) -> None:
    said = ranks(4, export_all, tmp_path, FOUR)
    expected = whole_tree(1)["model"]
    for number in range(len(FOUR)):
        found = load_file(tmp_path / f"{number}.safetensors")
        assert differences({n: t.contiguous() for n, t in expected.items()}, found) == []
    for each in said[:3]:
        assert each[: len(FOUR)] == ["nothing"] * len(FOUR)
        full, killed = each[len(FOUR) :]
        assert full == f"StoreError: {tmp_path / 'full.safetensors'} could not be written: File too large; {WAY_OUT}"
        assert killed == "StoreError: rank 3 is gone: its process ended, or its machine can't be reached"
    assert said[3] == KILLED
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n}.safetensors" for n in range(len(FOUR))]


# ---- documents ----


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 1, "b": 3}),
        ({}, {"$items": [[1, 2]]}, {"$items": [[1, 2]]}),
        ({"$items": [[0, 1]]}, {"$items": [[1, 2], [0, 5]]}, {"$items": [[0, 1], [1, 2]]}),
        ({"$tensor": "a"}, {"$tensor": "b"}, {"$tensor": "a"}),
        ({"$tuple": [{"a": 1}, 2]}, {"$tuple": [{"b": 1}, 3]}, {"$tuple": [{"a": 1, "b": 1}, 2]}),
        ([{"a": 1}], [{"b": 2}], [{"a": 1, "b": 2}]),
        ([1], [2, 3], [1]),
        ({"a": 1}, {"$items": [[1, 2]]}, {"a": 1}),
    ],
)
def test_documents_are_merged(one: Any, other: Any, both: Any) -> None:
    assert merged(one, other) == both
