"""The engine on a GPU: its forms agree, nothing waits for the device between log points, and a resume is exact."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import flatout as fo
from flatout.base.events import EventLog, read_events
from flatout.engine.saver import Saver
from flatout.store.checkpoints import Checkpoints
from flatout.store.sharded import ShardedCheckpoints
from flatout.store.sharded_peers import Peers
from flatout.store.tensors import read_tensors
from flatout.world.world import World

STRICT = {"device": "cuda", "deterministic": True, "log_every": 10}


def images(rows: int = 2048) -> Any:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (rows,), generator=generator)
    x = torch.randint(0, 120, (rows, 1, 12, 12), generator=generator, dtype=torch.uint8)
    for label in range(4):
        x[y == label, :, label * 3 : label * 3 + 3] += 100
    return fo.data.arrays(x, y, holdout=0.125, normalize="auto", augment=["flip"])


def train(tmp_path: Path, name: str, budget: str = "120 steps", **settings: Any) -> Any:
    options = {
        key: settings.pop(key) for key in list(settings) if key in ("clip", "ema", "model", "optimizer", "data", "batch")
    }
    recipe = fo.Recipe(
        data=options.pop("data", None) or images(),
        model=options.pop("model", "convnet"),
        batch=options.pop("batch", 128),
        lr=2e-3,
        budget=budget,
        schedule="cosine",
        settings={**STRICT, **settings},
        name=name,
        **options,
    )
    return fo.run(recipe, runs=tmp_path, fresh=True, cache=tmp_path.parent / "cache")


def weights(run: Any) -> torch.Tensor:
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(read_tensors(run.path / "model.safetensors").items())])


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "fp32"},
        {"precision": "tf32"},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"precision": "bf16", "graph": True},
        {"precision": "fp16", "graph": True, "clip": 1.0},
        {"precision": "bf16", "compile": "on"},
        {"precision": "bf16", "compile": "on", "graph": True, "channels_last": True},
        {"precision": "fp32", "tier": "pinned"},
        {"precision": "fp32", "micro_batch": 48},
        {"precision": "fp32", "graph": True, "ema": 0.99, "optimizer": "sgd"},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_every_form_learns(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = train(tmp_path, "form", **settings)
    assert run.result["status"] == "finished" and run.result["steps"] == 120
    assert run.result["metrics"]["accuracy"] > 0.9, run.result["metrics"]
    assert not [event for event in run.events() if event["kind"] == "degraded"]


@pytest.mark.parametrize(
    "other", [{"graph": True}, {"tier": "pinned"}, {"graph": True, "tier": "pinned"}, {"graph": True, "clip": 1e6}]
)
def test_forms_give_the_same_weights(tmp_path: Path, other: dict[str, Any]) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    plain = weights(train(tmp_path, "plain", precision="fp32"))
    same = weights(train(tmp_path, "other", precision="fp32", **other))
    assert (plain - same).norm() / plain.norm() < 1e-4


def test_micro_batches_give_the_same_weights(tmp_path: Path) -> None:
    whole = weights(train(tmp_path, "whole", precision="fp32", budget="40 steps", optimizer="sgd"))
    parts = weights(train(tmp_path, "parts", precision="fp32", budget="40 steps", optimizer="sgd", micro_batch=48))
    assert (whole - parts).norm() / whole.norm() < 1e-4


@pytest.mark.parametrize(
    "form",
    [{}, {"graph": True}, {"compile": "on"}, {"tier": "pinned"}, {"graph": True, "tier": "pinned"}, {"precision": "fp16"}],
)
def test_nothing_waits_for_the_device_between_log_points(tmp_path: Path, form: dict[str, Any]) -> None:
    torch.zeros(1, device="cuda")
    before = torch.cuda.get_sync_debug_mode()
    armed: list[int] = []

    def arm(event: Any) -> None:
        # set-up, evaluation and the first (compiling) step may wait; from the first log point on nothing else may
        if event["kind"] == "step" and not armed:
            armed.append(event["step"])
            torch.cuda.set_sync_debug_mode("error")

    recipe = fo.Recipe(
        data=images(), model="convnet", batch=128, lr=1e-3, budget="600 steps", evaluate=None, clip=1.0,
        settings={**STRICT, **form}, name="sync",
    )  # fmt: skip
    try:
        run = fo.run(recipe, runs=tmp_path, fresh=True, cache=tmp_path.parent / "cache", observers=[arm, _disarm_at(590)])
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert armed and run.result["steps"] == 600  # more than the rows computed ahead, so that they are refilled


def _disarm_at(step: int) -> Any:
    def disarm(event: Any) -> None:
        if event["kind"] == "step" and event["step"] >= step:
            torch.cuda.set_sync_debug_mode("default")

    return disarm


def test_the_sync_check_can_fail() -> None:
    torch.zeros(1, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_out_of_memory_splits_the_batch_and_goes_on(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    x, y = torch.randn(1024, 512), torch.randint(0, 2, (1024,))
    data = fo.data.arrays(x, y)
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(3e9 / total)
    try:
        run = train(
            tmp_path, "oom", data=data, model=wide, batch=512,
            budget="3 steps", precision="fp32", log_every=1,
        )  # fmt: skip
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    degraded = [event for event in run.events() if event["kind"] == "degraded" and event["what"] == "micro_batch"]
    assert run.result["steps"] == 3 and degraded and run.result["micro_batch"] < 512


class Wide(torch.nn.Module):
    """Takes much memory a sample and little for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(512, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        big = (x.unsqueeze(1) * torch.ones(2000, 1, device=x.device)).relu().tanh()
        return self.head(big.mean(1))


def wide() -> torch.nn.Module:
    return Wide()


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """With dropout, in the form that has most to put back: the whole step as one graph."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        json.dumps({"data": "digits", "model": {"convnet": {"dropout": 0.1}}, "batch": 64, "lr": 3e-3, "budget": "400 steps"})
    )
    command = [
        sys.executable, "-m", "flatout", "run", str(recipe), "--set", "deterministic=on", "--set", "graph=on",
        "--set", "device=cuda", "--set", "log_every=5", "--set", "checkpoint_every=40 steps", "--quiet",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    subprocess.run([*command, "--runs", str(tmp_path / "calm")], check=True, env=environment)
    child = subprocess.Popen([*command, "--runs", str(tmp_path / "cut")], env=environment)
    events = tmp_path / "cut" / "recipe-1" / "events.jsonl"
    while not any(event["kind"] == "step" and event["step"] >= 100 for event in read_events(events)):
        assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait() == 143
    subprocess.run([*command, "--runs", str(tmp_path / "cut")], check=True, env=environment)
    both = [tmp_path / name / "recipe-1" for name in ("calm", "cut")]
    settings = [json.loads((run / "plan.json").read_text())["settings"] for run in both]
    assert settings[0] == settings[1]
    losses = [_losses_of_intervals(run / "events.jsonl") for run in both]
    shared = sorted(losses[0].keys() & losses[1].keys())
    apart = [steps for steps in shared if losses[0][steps] != losses[1][steps]]
    odd = [event for run in both for event in read_events(run / "events.jsonl") if event["kind"] in ("degraded", "resumed")]
    assert len(shared) > 40 and not apart, f"of {len(shared)} intervals the first to differ is that of steps {apart[0]}; {odd}"
    calm, cut = (read_tensors(run / "model.safetensors") for run in both)
    assert all(torch.equal(calm[name], cut[name]) for name in calm)


def _losses_of_intervals(events: Path) -> dict[tuple[int, int], float]:
    """By first and last step: a resume begins an interval of its own."""
    points = [event for event in read_events(events) if event["kind"] == "step"]
    return {(before["step"], point["step"]): point["loss"] for before, point in pairwise(points)}


def test_a_save_beside_training_holds_what_was_there_in_whatever_order_it_lies(tmp_path: Path) -> None:
    """The stream of the loop is busy for a second after the save began, as it is with steps that are queued."""
    checkpoints = Checkpoints(tmp_path)
    saver = Saver(ShardedCheckpoints(checkpoints, Peers(World())), EventLog(None), torch.device("cuda"))
    weights = torch.randn(64, 32, 3, 3, device="cuda").to(memory_format=torch.channels_last)
    turned = torch.randn(48, 80, device="cuda").t()
    saver.save(1, {"weights": weights, "turned": turned}, wait=True)  # what a first save loads and allocates is there
    for tensor in (weights, turned):
        tensor.normal_()
    torch.cuda.synchronize()
    expected = {"weights": weights.cpu(), "turned": turned.cpu()}
    saver.save(2, {"weights": weights, "turned": turned})
    torch.cuda._sleep(2_000_000_000)
    weights.zero_()
    turned.zero_()
    saver.wait()
    found = checkpoints.load(2)
    assert saver.failures == 0 and all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_gpt_with_each_attention_kernel(tmp_path: Path) -> None:
    text = fo.data.text("module:json", encoding="bytes", window=64)
    losses = {}
    for kernel in ("auto", "flash", "cudnn", "efficient", "math"):
        model = {"gpt": {"layers": 2, "heads": 2, "width": 128}}
        recipe = fo.Recipe(
            data=text, model=model, objective="next_token", batch=16, lr=1e-3, budget="30 steps", name=kernel,
            settings={"device": "cuda", "precision": "bf16", "attention": kernel},
        )  # fmt: skip
        losses[kernel] = fo.run(recipe, runs=tmp_path, cache=tmp_path.parent / "cache").result["metrics"]["loss"]
    assert max(losses.values()) - min(losses.values()) < 0.05, losses


def test_activation_checkpointing_gives_the_same_loss_for_less_memory(tmp_path: Path) -> None:
    text = fo.data.text("module:email", encoding="bytes", window=256)
    results, memory = {}, {}
    for on in (False, True):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        recipe = fo.Recipe(
            data=text, model={"gpt": {"layers": 8, "heads": 4, "width": 256}}, objective="next_token", batch=64, lr=1e-3,
            budget="5 steps", name="recompute",
            settings={"device": "cuda", "precision": "fp32", "activation_checkpointing": on},
        )  # fmt: skip
        results[on] = fo.run(recipe, runs=tmp_path, fresh=True, cache=tmp_path.parent / "cache").result
        memory[on] = results[on]["peak_memory_bytes"] - before
    assert results[True]["metrics"]["loss"] == pytest.approx(results[False]["metrics"]["loss"], rel=1e-3)
    assert memory[True] < 0.7 * memory[False]


class Peeking(torch.nn.Module):
    """Looks at a value on the host in its forward, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(144, 4)
        self.dropout = torch.nn.Dropout(0.1)  # draws on the device, after the capture failed too

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 1.0 if float(x.abs().max()) < 1e6 else 0.5
        return self.head(self.dropout(x.flatten(1) * scale))


def test_a_model_that_can_not_be_captured_trains_without_a_graph(tmp_path: Path) -> None:
    run = train(tmp_path, "peeking", model=Peeking, graph=True, budget="60 steps")
    degraded = [event["what"] for event in run.events() if event["kind"] == "degraded"]
    assert run.result["steps"] == 60 and degraded == ["graph"]
    assert torch.rand(3, device="cuda").isfinite().all()  # the device's random numbers are out of the capture too
