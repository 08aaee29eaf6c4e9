"""On a GPU: what waits in host memory frees the device's and changes nothing; allocator, fp8 and flex attention do as told."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import UsageError
from flatout.base.specs import Spec
from flatout.engine.attention import use_flex
from flatout.engine.fp8 import to_fp8
from flatout.engine.offload import ActivationOffload, HostOptimizer
from flatout.engine.optimizers import build_optimizer, decay_groups
from flatout.engine.precision import autocast
from flatout.engine.surroundings import allocator, allocator_settings
from flatout.models.gpt import gpt
from flatout.store.tensors import read_tensors

pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # torch's advice to whoever compiles

CUDA = torch.device("cuda")
TEXT: dict[str, Any] = {"objective": "next_token", "batch": 32, "lr": 1e-3, "seed": 0}
MODEL = {"gpt": {"layers": 8, "heads": 4, "width": 256}}


def train(runs: Path, name: str, *, budget: str = "8 steps", fresh: bool = True, **given: Any) -> Any:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    gc.collect()
    torch.cuda.empty_cache()
    settings = {"device": "cuda", "precision": "fp32", "compile": "off", "graph": False, "micro_batch": 0, "log_every": 4}
    settings |= {"deterministic": True, **given.pop("settings", {})}
    text = fo.data.text("module:email", encoding="bytes", window=256)
    recipe = fo.Recipe(data=text, **{"model": MODEL, **TEXT, **given}, budget=budget, name=name, settings=settings)
    return fo.run(recipe, runs=runs, fresh=fresh, cache=runs.parent / "cache")


def weights(run: Any) -> Tensor:
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(read_tensors(run.path / "model.safetensors").items())])


def apart(one: Any, other: Any) -> float:
    ours, theirs = weights(one), weights(other)
    return float((ours - theirs).norm() / theirs.norm())


def degraded(run: Any) -> list[str]:
    return [f"{event['what']}: {event['why']}" for event in run.events() if event["kind"] == "degraded"]


# ---- activations ----


class Deep(nn.Module):
    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x.square().mean()


def one_pass(model: nn.Module, compute: Callable[[Tensor], Tensor], x: Tensor, offload: Any) -> tuple[list[Tensor], int]:
    """Gradients, and what the device held beyond the weights once the forward was done."""
    model.zero_grad()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    if offload is None:
        loss = compute(x)
    else:
        with offload():
            loss = compute(x)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None], held


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_leave_the_device_and_come_back_as_they_were(precision: str, compiled: bool) -> None:
    torch.manual_seed(0)
    model, x = Deep().cuda(), torch.randn(8192, 1024, device=CUDA)

    def forward(x: Tensor) -> Tensor:
        found: Tensor = model(x)
        return found

    inner: Callable[[Tensor], Tensor] = torch.compile(forward) if compiled else forward

    def compute(x: Tensor) -> Tensor:
        with autocast(precision, CUDA):
            return inner(x)

    one_pass(model, compute, x, None)
    plain, held = one_pass(model, compute, x, None)
    offload = ActivationOffload(model, CUDA)
    for _ in range(5):  # memory of both sides is taken again and again: a copy that came too late would show
        found, left = one_pass(model, compute, x, offload)
        assert all(map(torch.equal, found, plain))
    assert held > 100 << 20 and left < 0.25 * held


def test_an_activation_that_is_freed_at_once_is_still_copied_whole() -> None:
    """What the next operation writes lies where the last one's was: the copy must have left by then."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(1, 4096, device=CUDA))
    x = torch.randn(4096, 4096, device=CUDA)

    def chain() -> Tensor:
        found = x
        for _ in range(20):
            found = torch.sin(found * parameter)
        return found.mean()

    (plain,) = torch.autograd.grad(chain(), parameter)
    offload = ActivationOffload(nn.ParameterList([parameter]), CUDA)
    for _ in range(3):
        with offload():
            loss = chain()
        (found,) = torch.autograd.grad(loss, parameter)
        assert torch.equal(found, plain)


@pytest.mark.parametrize("more", [{}, {"micro_batch": 8}, {"activation_checkpointing": True}], ids=str)
def test_a_run_with_activation_offload_learns_the_same_for_less_memory(tmp_path: Path, more: dict[str, Any]) -> None:
    plain = train(tmp_path, "plain", settings=more)
    offloaded = train(tmp_path, "offloaded", settings={**more, "activation_offload": True})
    assert not degraded(offloaded) and apart(offloaded, plain) < 1e-4
    if not more:
        assert offloaded.result["peak_memory_bytes"] < 0.8 * plain.result["peak_memory_bytes"]


# ---- the optimizer ----


def test_the_host_steps_what_the_device_has() -> None:
    """Over pinned memory and queued copies; a step with a loss that is not a number changes nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
    twin = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    twin.load_state_dict(model.state_dict())

    def build(groups: list[dict[str, Any]]) -> Any:
        return build_optimizer(Spec("adamw", {}), groups, 1e-2, fused=True, graph=False, device=CUDA)

    held = torch.cuda.memory_allocated()
    host = HostOptimizer(decay_groups(model, 0.1, {}), build)
    beside = HostOptimizer(decay_groups(twin, 0.1, {}), build)  # the same on a CPU, from the same gradients
    assert torch.cuda.memory_allocated() == held, "nothing of it is on the device"
    for number in range(20):
        loss = model(torch.randn(64, 512, device=CUDA)).square().mean()
        loss.backward()
        for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert parameter.grad is not None
            other.grad = parameter.grad.cpu()
        watched = loss.detach() * (float("nan") if number == 7 else 1.0)
        host(watched), beside(watched.cpu())
        model.zero_grad()
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(parameter.cpu(), other)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_run_with_its_optimizer_on_the_host_learns_the_same_for_less_memory(tmp_path: Path, optimizer: str) -> None:
    given: dict[str, Any] = {"optimizer": optimizer, "clip": 1.0, "ema": 0.9, "batch": 4}
    given["model"] = {"gpt": {"layers": 8, "heads": 8, "width": 512}}
    plain = train(tmp_path, "plain", **given)
    host = train(tmp_path, "host", **given, settings={"optimizer_offload": True})
    assert not degraded(host) and host.result["skipped_steps"] == 0
    assert apart(host, plain) < 1e-3
    assert host.result["metrics"]["loss"] == pytest.approx(plain.result["metrics"]["loss"], rel=1e-3)
    if optimizer == "adamw":
        assert host.result["peak_memory_bytes"] < plain.result["peak_memory_bytes"]


def test_with_everything_on_the_host_it_still_learns_compiled_in_bf16(tmp_path: Path) -> None:
    both = {"activation_offload": True, "optimizer_offload": True, "compile": "on", "precision": "bf16"}
    plain = train(tmp_path, "plain", budget="30 steps", settings={"precision": "bf16"})
    run = train(tmp_path, "both", budget="30 steps", settings=both)
    assert not degraded(run)
    assert run.result["metrics"]["loss"] == pytest.approx(plain.result["metrics"]["loss"], rel=0.03)


# ---- the allocator ----


def test_segments_grow_within_the_context_and_are_put_back() -> None:
    torch.zeros(1, device=CUDA)
    before = allocator_settings(CUDA)
    if "expandable_segments:True" in before:
        pytest.skip("the environment asks for expandable segments already")

    def is_expandable() -> bool:
        torch.cuda.empty_cache()
        more_than_is_kept = torch.cuda.memory_reserved(CUDA) + (64 << 20)
        held = torch.zeros(more_than_is_kept, dtype=torch.uint8, device=CUDA)
        place = held.data_ptr()
        segments: Any = torch.cuda.memory_snapshot()
        return any(s["is_expandable"] for s in segments if s["address"] <= place < s["address"] + s["total_size"])

    assert not is_expandable()
    with allocator("expandable", CUDA):
        assert "expandable_segments:True" in allocator_settings(CUDA)
        assert is_expandable()
    torch.cuda.empty_cache()
    assert not is_expandable()


def test_a_run_with_segments_that_grow_learns_the_same(tmp_path: Path) -> None:
    plain = train(tmp_path, "plain")
    grown = train(tmp_path, "grown", settings={"allocator": "expandable"})
    graph = train(tmp_path, "graph", settings={"allocator": "expandable", "graph": True})
    assert apart(grown, plain) < 1e-4 and apart(graph, plain) < 1e-3
    assert not degraded(grown) and not degraded(graph)


# ---- attention ----


@pytest.mark.parametrize("window", [256, 200])
def test_flex_attention_trains_as_torchs_own(window: int) -> None:
    torch.manual_seed(0)
    model = gpt(64, window, layers=2, heads=4, width=256).cuda()
    x = torch.randint(64, (4, window), device=CUDA)

    def gradients(compute: Callable[[Tensor], Tensor]) -> Tensor:
        with autocast("bf16", CUDA):
            loss = F.cross_entropy(compute(x).float().flatten(0, 1), x.roll(-1, 1).flatten())
        found = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([gradient.flatten() for gradient in found])

    plain = gradients(model)
    assert use_flex(model) == 2
    assert torch.equal(gradients(model), plain), "what is not compiled stays as it is"
    torch._dynamo.reset()
    breaks = torch._dynamo.utils.counters["graph_break"]
    breaks.clear()
    flexed = gradients(torch.compile(model))
    assert not breaks
    assert F.cosine_similarity(flexed, plain, dim=0) > 0.99


def test_a_run_with_flex_attention_learns(tmp_path: Path) -> None:
    plain = train(tmp_path, "plain", budget="30 steps", settings={"precision": "bf16", "compile": "on"})
    flexed = train(tmp_path, "flex", budget="30 steps", settings={"precision": "bf16", "compile": "on", "attention": "flex"})
    assert not degraded(flexed)
    assert flexed.result["metrics"]["loss"] == pytest.approx(plain.result["metrics"]["loss"], rel=0.03)


# ---- fp8 ----


@pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="torchao is here")
def test_without_torchao_fp8_is_refused_with_the_way_out() -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no fp8 on this device")
    with pytest.raises(UsageError, match="pip install torchao"):
        to_fp8(Deep(2).cuda(), CUDA)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compile_setting", ["off", "on"])
def test_fp8_learns(tmp_path: Path, compile_setting: str) -> None:
    pytest.importorskip("torchao.float8")
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no fp8 on this device")
    more = {"compile": compile_setting, "deterministic": False}
    plain = train(tmp_path, "plain", budget="60 steps", settings={"precision": "bf16", **more})
    run = train(tmp_path, "fp8", budget="60 steps", settings={"precision": "fp8", **more})
    assert run.result["metrics"]["loss"] == pytest.approx(plain.result["metrics"]["loss"], rel=0.05)
    names = read_tensors(run.path / "model.safetensors")
    assert names.keys() == read_tensors(plain.path / "model.safetensors").keys()
    assert all(tensor.dtype == torch.float32 for tensor in names.values() if tensor.is_floating_point())
