"""Checkpoints: whole or absent, named when damaged, kept as asked for, and a full disk that costs nothing but the save."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import blobs, dropping_net, equal, kinds, net, recipe, train, weights
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import DamagedCheckpoint, Stopped, StoreError
from flatout.base.events import EventLog
from flatout.base.units import parse_seconds
from flatout.drill.difference import differing_bits
from flatout.engine.saver import Saver
from flatout.runs.verbs import Run
from flatout.store import checkpoints as checkpoints_module
from flatout.store.checkpoints import Checkpoints
from flatout.store.sharded import ShardedCheckpoints
from flatout.store.sharded_peers import Peers
from flatout.store.tensors import decode, encode, write_tensors
from flatout.world.world import World

EVERY_TWO = {"log_every": 1, "checkpoint_every": "2 steps", "keep_checkpoints": 3}


def stopped_at(step: int, runs: Path, asked: fo.Recipe) -> Run:
    def stop(event: Any) -> None:
        if event["kind"] == "step" and event["step"] == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train(runs, asked, observers=[stop])
    return fo.load("last", runs=runs)


def flip_a_byte(checkpoint: Path) -> None:
    path = checkpoint / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))


def truncate_state(checkpoint: Path) -> None:
    path = checkpoint / "state.json"
    path.write_bytes(path.read_bytes()[:50])


def delete_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def empty_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text("")


@pytest.mark.parametrize("damage", [flip_a_byte, truncate_state, delete_manifest, empty_manifest])
def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path: Path, damage: Any) -> None:
    asked = recipe(model=dropping_net, evaluate=None, settings=EVERY_TWO)
    calm = train(tmp_path / "calm", asked)
    cut = stopped_at(6, tmp_path / "cut", asked)
    assert cut.folder.checkpoints().steps() == [2, 4, 6]
    damage(cut.folder.checkpoints().path(6))
    run = train(tmp_path / "cut", asked)
    (event,) = kinds(run, "checkpoint_damaged")
    assert event["step"] == 6 and "step-000000006" in event["why"]
    assert kinds(run, "resumed")[0]["step"] == 4
    assert run.result["steps"] == 12 and differing_bits(calm.folder, run.folder)[0] == 0


def test_damaged_ones_do_not_push_out_good_ones(tmp_path: Path) -> None:
    asked = recipe(evaluate=None, settings={**EVERY_TWO, "keep_checkpoints": 1})
    cut = stopped_at(6, tmp_path, asked)
    assert cut.folder.checkpoints().steps() == [6]
    flip_a_byte(cut.folder.checkpoints().path(6))
    cut = stopped_at(4, tmp_path, asked)
    assert len(kinds(cut, "started")) == 2, "nothing whole was left: from the start"
    assert cut.folder.checkpoints().steps() == [4]
    assert train(tmp_path, asked).result["steps"] == 12


def test_another_versions_checkpoint_is_refused_not_passed_over(tmp_path: Path) -> None:
    asked = recipe(settings=EVERY_TWO)
    cut = stopped_at(4, tmp_path, asked)
    path = cut.folder.checkpoints().path(4) / "manifest.json"
    path.write_text(json.dumps({"format": 99, "sha256": {}}))
    with pytest.raises(StoreError, match=r"format 99.*--fresh"):
        train(tmp_path, asked)
    assert cut.folder.checkpoints().path(4).exists()


def full_disk(*given: Any, **named: Any) -> str:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_costs_the_save_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = recipe(evaluate=None, settings=EVERY_TWO)
    calm = train(tmp_path / "calm", asked)
    kept: list[list[int]] = []

    def fill(event: Any) -> None:
        if event["kind"] == "checkpoint_saved" and event["step"] == 4:
            monkeypatch.setattr(checkpoints_module, "write_tensors", full_disk)
        if event["kind"] == "checkpoint_failed":
            kept.append(event["kept"])
        if event["kind"] == "checkpoint_failed" and event["step"] == 8:
            monkeypatch.setattr(checkpoints_module, "write_tensors", write_tensors)

    run = train(tmp_path / "full", asked, observers=[fill])
    failed = kinds(run, "checkpoint_failed")
    assert [event["step"] for event in failed] == [6, 8] and kept == [[4], [4]]
    assert "No space left" in failed[0]["why"]
    assert run.result["status"] == "finished" and run.result["checkpoints"]["failed"] == 2
    assert run.folder.checkpoints().load(4)["progress"]["step"] == 4
    assert run.folder.checkpoints().steps() == [4, 10, 12]
    assert not [entry.name for entry in (run.path / "checkpoints").iterdir() if entry.name.startswith(".")]
    assert equal(weights(calm), weights(run))


def test_a_disk_that_fills_up_in_the_middle_of_a_file_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes go in, then none: as it is on a real disk."""
    write, room = os.write, {"bytes": 1 << 30}

    def limited(handle: int, content: Any) -> int:
        if len(content) > room["bytes"]:
            room["bytes"] = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room["bytes"] -= len(content)
        return write(handle, content)

    def fill(event: Any) -> None:
        if event["kind"] == "checkpoint_saved" and event["step"] == 4:
            room["bytes"] = 3000
            monkeypatch.setattr("flatout.store.tensors.os.write", limited)
        if event["kind"] == "checkpoint_failed" and event["step"] == 8:
            monkeypatch.undo()

    run = train(tmp_path, evaluate=None, settings=EVERY_TWO, observers=[fill])
    assert run.result["status"] == "finished" and run.result["checkpoints"]["failed"] == 2
    assert run.folder.checkpoints().steps() == [4, 10, 12] and run.folder.checkpoints().load(4)
    assert run.result["events_lost"] > 0, "there was no room for those either, and that is said"


def test_a_stop_on_a_full_disk_does_not_claim_to_have_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(event: Any) -> None:
        if event["kind"] == "checkpoint_saved" and event["step"] == 4:
            monkeypatch.setattr(checkpoints_module, "write_tensors", full_disk)
        if event["kind"] == "step" and event["step"] == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match=r"step 5 could NOT be saved.*\[4\]"):
        train(tmp_path, evaluate=None, settings=EVERY_TWO, observers=[fill])


def test_the_final_weights_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = recipe(settings=EVERY_TWO)
    monkeypatch.setattr("flatout.store.sharded_export.write_tensors", full_disk)
    with pytest.raises(StoreError, match=r"model.safetensors.*No space left.*the same command"):
        train(tmp_path, asked)
    monkeypatch.undo()
    run = train(tmp_path, asked)
    assert run.name == "small-1" and run.result["status"] == "finished" and run.result["steps"] == 12 and weights(run)


def test_the_best_and_the_last_n_are_kept(tmp_path: Path) -> None:
    values = iter([0.5, 0.9, 0.6, 0.7, 0.8, 0.4])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flatout.objectives.classify._finish", lambda total: {"loss": 1.0, "accuracy": next(values)})
        values = iter([0.0, *values])  # the check before the run asks once
        run = train(tmp_path, evaluate="2 steps", settings={**EVERY_TWO, "keep_checkpoints": 2})
    assert run.folder.checkpoints().steps() == [4, 10, 12]
    assert run.folder.checkpoints().best() == {"step": 4, "metric": "accuracy", "value": 0.9}
    assert [event["best"] for event in kinds(run, "evaluation")] == [True, True, False, False, False, False]


def test_an_interrupted_write_is_swept(tmp_path: Path) -> None:
    asked = recipe(settings=EVERY_TWO)
    cut = stopped_at(4, tmp_path, asked)
    half = cut.path / "checkpoints" / ".writing-step-000000006"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half of it")
    assert cut.folder.checkpoints().being_written() == 6 and cut.folder.checkpoints().steps() == [0, 2, 4]
    run = train(tmp_path, asked)
    assert kinds(run, "resumed")[0]["swept"] == [half.name]
    assert not half.exists()


def test_killed_while_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    """The same step is written again after a rollback; at each moment one of the two is there or can be put back."""
    kept = Checkpoints(tmp_path, keep=2)
    kept.write(4, *encode({"which": 1}))
    kept.path(4).rename(tmp_path / ".replaced-step-000000004")
    assert kept.sweep() == [".replaced-step-000000004"] and kept.load(4) == {"which": 1}
    kept.write(4, *encode({"which": 2}))
    assert kept.load(4) == {"which": 2} and [entry.name for entry in tmp_path.iterdir()] == ["step-000000004"]


def test_an_error_in_a_write_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Checkpoints(tmp_path)
    kept.write(4, *encode({"which": 1}))
    monkeypatch.setattr(checkpoints_module, "write_json", full_disk)
    with pytest.raises(OSError, match="No space left"):
        kept.write(6, *encode({"which": 2}))
    assert kept.steps() == [4] and [entry.name for entry in tmp_path.iterdir()] == ["step-000000004"]


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="step-000000003"):
        Checkpoints(tmp_path).load(3)


# ---- what can be kept ----


def through_disk(tree: Any, folder: Path) -> Any:
    kept = Checkpoints(folder)
    kept.write(1, *encode(tree))
    return kept.load(1)


def test_any_nested_state_comes_back_as_it_was(tmp_path: Path) -> None:
    """LBFGS keeps lists of tensors, None, ints and floats side by side, under integer keys."""
    parameters = [nn.Parameter(torch.tensor([1.0, -2.0]))]
    optimizer = torch.optim.LBFGS(parameters, max_iter=4, history_size=3)
    for _ in range(3):
        optimizer.step(lambda: _rosenbrock(optimizer, parameters[0]))
    state = optimizer.state_dict()
    back = through_disk(
        {"optimizer": state, "odd": {1: (2, [None, {"$tensor": "no"}]), "s": "x", "inf": float("inf")}}, tmp_path
    )
    assert back["odd"] == {1: (2, [None, {"$tensor": "no"}]), "s": "x", "inf": float("inf")}
    (saved,), (loaded,) = state["state"].values(), back["optimizer"]["state"].values()
    assert saved.keys() == loaded.keys() and len(loaded["old_dirs"]) == len(saved["old_dirs"]) > 0
    for one, other in zip(saved["old_dirs"], loaded["old_dirs"], strict=True):
        assert torch.equal(one, other)
    again = torch.optim.LBFGS([nn.Parameter(parameters[0].detach().clone())], max_iter=4, history_size=3)
    again.load_state_dict(back["optimizer"])
    again.step(lambda: _rosenbrock(again, again.param_groups[0]["params"][0]))
    optimizer.step(lambda: _rosenbrock(optimizer, parameters[0]))
    assert torch.equal(again.param_groups[0]["params"][0], parameters[0])


def _rosenbrock(optimizer: torch.optim.Optimizer, p: Tensor) -> float:
    optimizer.zero_grad()
    loss = (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool, torch.uint8]
)
def test_every_kind_of_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    tree = {
        "scalar": torch.ones((), dtype=dtype),
        "empty": torch.ones(0, 3, dtype=dtype),
        "some": torch.ones(3, 5, dtype=dtype),
    }
    back = through_disk(tree, tmp_path)
    assert all(torch.equal(back[name], tensor) and back[name].dtype == dtype for name, tensor in tree.items())


def test_tied_tensors_stay_tied_and_are_written_once() -> None:
    shared = torch.arange(6.0).view(2, 3)
    document, tensors = encode({"a": shared, "b": {"c": shared}, "part": shared[1]})
    assert len(tensors) == 2
    back = decode(document, tensors)
    assert back["a"] is back["b"]["c"] and torch.equal(back["part"], shared[1])


def test_layout_comes_back(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    back = through_disk({"image": image, "turned": image[0, 0].t(), "wide": torch.ones(1).expand(4)}, tmp_path)
    assert back["image"].is_contiguous(memory_format=torch.channels_last) and torch.equal(back["image"], image)
    assert torch.equal(back["turned"], image[0, 0].t()) and torch.equal(back["wide"], torch.ones(4))


def test_names_with_dots_do_not_overwrite_each_other() -> None:
    tree = {"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}}
    back = decode(*encode(tree))
    assert torch.equal(back["a.b"], torch.zeros(2)) and torch.equal(back["a"]["b"], torch.ones(2))


@pytest.mark.parametrize("bad", [object(), {1.5: 2}, {"set"}, nn.Linear(1, 1)], ids=["object", "float key", "set", "module"])
def test_what_can_not_be_kept_is_refused_with_its_place(bad: Any) -> None:
    with pytest.raises(StoreError, match=r"optimizer\.state\.0\.odd is a \w+"):
        encode({"optimizer": {"state": {0: {"odd": bad}}}})


class Odd(torch.optim.SGD):
    """Its state holds what no checkpoint can keep."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            group["odd"] = object()


def odd(groups: Any, lr: float) -> torch.optim.Optimizer:
    made = Odd(groups, lr=lr)
    made.param_groups[0]["odd"] = object()
    return made


def test_an_optimizer_whose_state_can_not_be_kept_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"optimizer\.param_groups\.0\.odd is a object"):
        train(tmp_path, optimizer=odd, model=net)


# ---- models with odd memory ----


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 6, bias=False)
        self.again = nn.Linear(6, 6, bias=False)
        self.again.weight = self.embed.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.again(torch.relu(self.embed(x)))))


def test_tied_weights_survive_a_resume(tmp_path: Path) -> None:
    asked = recipe(model=Tied, settings=EVERY_TWO)
    calm = train(tmp_path / "calm", asked)
    cut = stopped_at(5, tmp_path / "cut", asked)
    state = cut.folder.checkpoints().load(5)["model"]
    assert state["embed.weight"] is state["again.weight"]
    run = train(tmp_path / "cut", asked)
    assert differing_bits(calm.folder, run.folder)[0] == 0
    assert torch.equal(weights(run)["embed.weight"], weights(run)["again.weight"])


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_channels_last_survives_a_resume(tmp_path: Path) -> None:
    flat = blobs(holdout=0.0)
    rows = flat.train.read(torch.arange(len(flat.train)))
    pictures = rows["x"].repeat(1, 3).view(-1, 2, 3, 3)
    asked = recipe(
        data=fo.data.arrays(pictures, rows["y"], layout="chw"), model=Pictures, settings={**EVERY_TWO, "channels_last": True}
    )
    calm = train(tmp_path / "calm", asked)
    cut = stopped_at(5, tmp_path / "cut", asked)
    kept = cut.folder.checkpoints().load(5)
    assert kept["model"]["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert not kept["model"]["conv.weight"].is_contiguous()
    run = train(tmp_path / "cut", asked)
    assert differing_bits(calm.folder, run.folder)[0] == 0


def test_saves_are_as_far_apart_as_what_they_take_and_failures_make_worth(tmp_path: Path) -> None:
    saver = Saver(ShardedCheckpoints(Checkpoints(tmp_path), Peers(World())), EventLog(None), torch.device("cpu"))
    assert saver.best_interval_s(86_400) == 120  # nothing is known yet
    saver.times.count, saver.times.whole_s = 2, 6.0
    assert saver.best_interval_s(86_400) == pytest.approx((2 * 3 * 86_400) ** 0.5)
    assert saver.best_interval_s(3_600) == pytest.approx((2 * 3 * 3_600) ** 0.5)
    saver.times.whole_s = 1e-9
    assert saver.best_interval_s(86_400) == 10


def test_a_run_saves_by_itself_as_often_as_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_with(interval_s: float, failure_every: str) -> int:
        asked: list[float] = []
        monkeypatch.setattr(Saver, "best_interval_s", lambda saver, every_s: asked.append(every_s) or interval_s)
        run = train(tmp_path, fresh=True, budget="40 steps", evaluate=None, settings={"failure_every": failure_every})
        assert set(asked) == {parse_seconds(failure_every)}
        return len(kinds(run, "checkpoint_saved"))

    assert run_with(0.0, "2 h") > run_with(1e9, "30 min") == 2  # the first and the last


def test_copies_are_turned_into_the_order_of_the_file_before_they_are_handed_over(tmp_path: Path) -> None:
    """Else the thread that writes would turn them, on a stream of a device that nothing waits for."""
    checkpoints = Checkpoints(tmp_path)
    saver = Saver(ShardedCheckpoints(checkpoints, Peers(World())), EventLog(None), torch.device("cpu"))
    weights, turned = torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last), torch.randn(6, 5).t()
    saver.save(1, {"weights": weights, "turned": turned}, wait=True)
    assert all(copy.is_contiguous() for copy in saver._copies.values())
    found = checkpoints.load(1)
    assert torch.equal(found["weights"], weights) and found["weights"].stride() == weights.stride()
    assert torch.equal(found["turned"], turned)
