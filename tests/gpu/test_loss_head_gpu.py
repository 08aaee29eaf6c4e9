"""The loss of tokens in each of its forms on a GPU, padded or not, eager, compiled, in a graph: one loss, one gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatout as fo
from flatout.engine.settings import Settings
from flatout.models.gpt import gpt
from flatout.models.head import pad_vocabulary
from flatout.objectives.build import build
from flatout.objectives.chunked_loss import chunked_loss, joined_loss
from flatout.plan.choose import situation_of
from flatout.plan.knobs import loss_head, vocabulary_padding
from flatout.plan.plan import Choice
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.reports import Ask
from flatout.recipe.build import build_job
from flatout.testing.knobs import made_up

CUDA = torch.device("cuda")
TOKENS, WINDOW = 5003, 64
FORMS = [("fused", 0), ("joined", 0), ("chunked", 0), ("plain", 64), ("fused", 64), ("joined", 64), ("chunked", 64)]
CLOSE = {None: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}


def small_gpt(tied: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return gpt(TOKENS, WINDOW, layers=1, heads=2, width=64, tied=tied)


def batch() -> dict[str, Tensor]:
    draw = torch.Generator("cuda").manual_seed(1)
    made = {name: torch.randint(0, TOKENS, (8, WINDOW), device=CUDA, generator=draw) for name in ("x", "y")}
    made["y"][2, :9] = -100
    return made


def mean_of(model: nn.Module, kind: str, padding: int, autocast: torch.dtype | None) -> Callable[[dict[str, Tensor]], Tensor]:
    pad_vocabulary(model, padding)
    loss = build("next_token").with_loss_head(kind, model, CUDA)

    def mean(given: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
            total, weight = loss(model, given)
        return total / weight

    return mean


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def loss_of(mean: Any, given: dict[str, Tensor]) -> Tensor:
    """With its gradients, and nothing left of how they were found: a graph can't be captured beside that."""
    loss = mean(given)
    loss.backward()
    return loss.detach()


def check_close(found: dict[str, Tensor], expected: dict[str, Tensor], close: float) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        apart = (found[name] - gradient).norm() / gradient.norm()
        assert apart <= close, f"{name}: {apart:.2e} apart"


@pytest.mark.parametrize(
    ("autocast", "compiled"),
    [(None, False), (torch.bfloat16, False), (torch.bfloat16, True)],
    ids=["fp32", "bf16", "bf16-compiled"],
)
@pytest.mark.parametrize(("kind", "padding"), FORMS)
def test_every_form_gives_the_loss_and_gradients_of_torch(
    kind: str, padding: int, autocast: torch.dtype | None, compiled: bool
) -> None:
    first = small_gpt().to(CUDA)
    second, given = copy.deepcopy(first), batch()
    expected = mean_of(first, "plain", 0, autocast)(given)
    expected.backward()
    mean = mean_of(second, kind, padding, autocast)
    found = (torch.compile(mean, fullgraph=True, dynamic=False) if compiled else mean)(given)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-4 if autocast is None else 2e-3, atol=0)
    check_close(gradients(second), gradients(first), CLOSE[autocast])


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(("kind", "padding"), FORMS)
def test_a_graph_replays_every_form(kind: str, padding: int, tied: bool) -> None:
    model, given = small_gpt(tied).to(CUDA), batch()
    other = {name: column.roll(1, 0).clone() for name, column in given.items()}
    mean = mean_of(model, kind, padding, torch.bfloat16)
    expected = loss_of(mean, other)
    by_hand = gradients(model)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            loss_of(mean, given)
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = loss_of(mean, given)
    for name, column in other.items():
        given[name].copy_(column)
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    check_close(gradients(model), by_hand, 1e-2)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("rows_at_once", [128, 1000, 1500, None])
def test_the_loss_in_parts_against_float64(rows_at_once: int | None, autocast: torch.dtype | None) -> None:
    draw = torch.Generator("cuda").manual_seed(3)
    hidden = torch.randn(1500, 64, device=CUDA, generator=draw)
    weight, bias = torch.randn(TOKENS, 64, device=CUDA, generator=draw) / 8, torch.randn(TOKENS, device=CUDA, generator=draw)
    target = torch.randint(0, TOKENS, (1500,), device=CUDA, generator=draw)
    target[::9] = -100
    ours = [one.clone().requires_grad_() for one in (hidden, weight, bias)]
    exact = [one.double().requires_grad_() for one in (hidden, weight, bias)]
    with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
        loss = chunked_loss(ours[0], ours[1], ours[2], target, -100, rows_at_once)
    (loss / 1333).backward()
    expected = F.cross_entropy(F.linear(*exact), target, reduction="sum")
    (expected / 1333).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5 if autocast is None else 2e-3, atol=0)
    names = ("hidden", "weight", "bias")
    by_ours, by_exact = (
        {name: one.grad.double() for name, one in zip(names, given, strict=True) if one.grad is not None}
        for given in (ours, exact)
    )
    check_close(by_ours, by_exact, CLOSE[autocast])


@pytest.mark.parametrize(("formula", "gib"), [(chunked_loss, 1.0), (joined_loss, 2.2)])
def test_what_a_loss_holds(formula: Callable[..., Tensor], gib: float) -> None:
    """In parts a part of the logits; joined all of them, and no gradient beside them."""
    torch.cuda.empty_cache()
    rows, tokens, width = 1 << 15, 1 << 15, 64  # 2 GiB of logits in bf16
    hidden = torch.randn(rows, width, device=CUDA, requires_grad=True)
    weight = torch.randn(tokens, width, device=CUDA, requires_grad=True)
    target = torch.randint(0, tokens, (rows,), device=CUDA)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16):
        loss = formula(hidden, weight, None, target, -100)
    loss.backward()
    assert torch.cuda.max_memory_allocated() - before < gib * 2**30


def test_nothing_waits_for_the_device() -> None:
    model, given = small_gpt().to(CUDA), batch()
    means = [mean_of(model, kind, padding, torch.bfloat16) for kind, padding in (("fused", 0), ("joined", 0), ("chunked", 64))]
    for mean in means:
        mean(given).backward()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for mean in means:
            mean(given).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# through the engine


def recipe(tmp_path: Path, **given: Any) -> fo.Recipe:
    path = tmp_path / "tokens.bin"
    np.random.default_rng(0).integers(0, TOKENS, 60_000, dtype=np.uint16).tofile(path)
    objective = {"next_token": {"ignore": None}}
    asked: dict[str, Any] = {"batch": 16, "lr": 1e-3, "budget": "20 steps", "objective": objective, **given}
    data = fo.data.text(path, encoding="tokens", vocabulary=TOKENS, window=WINDOW, holdout=0.1)
    return fo.Recipe(data=data, model=small_gpt, **asked)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(build_job(recipe(tmp_path_factory.mktemp("bench"))), CUDA)
    yield made
    made.close()


@pytest.mark.parametrize(
    "more",
    [
        {"precision": "fp32"},
        {"precision": "fp16"},
        {"precision": "bf16", "micro_batch": 5},
        {"precision": "bf16", "residual": "autocast"},
        {"precision": "bf16", "residual": "autocast", "compile": "on", "graph": True},
    ],
    ids=["fp32", "fp16", "micro", "narrow", "compiled-graph"],
)
@pytest.mark.parametrize(("kind", "padding"), [("fused", 64), ("joined", 64), ("chunked", 64), ("chunked", 0)])
def test_the_bench_finds_every_form_to_be_the_same_step(bench: Bench, kind: str, padding: int, more: dict[str, Any]) -> None:
    plain = Settings(device="cuda", deterministic=False)
    settings = Settings(device="cuda", deterministic=False, loss_head=kind, vocabulary_padding=padding, **more)
    report = bench.attempt(Ask(settings.to_dict(), None, plain.to_dict(), measure_s=0.05))
    assert report.ran, f"{report.failure}: {report.why}"
    assert report.check is not None and report.check["passed"], report.check


def test_forms_train_to_the_same_loss(tmp_path: Path) -> None:
    losses = {}
    for kind, padding in [("plain", 0), *FORMS]:
        settings = {"device": "cuda", "precision": "bf16", "loss_head": kind, "vocabulary_padding": padding, "graph": True}
        run = fo.run(recipe(tmp_path, settings=settings), runs=tmp_path / f"{kind}-{padding}", cache=tmp_path.parent / "cache")
        losses[kind, padding] = run.result["metrics"]["loss"]
    assert max(losses.values()) - min(losses.values()) < 0.02, losses


def test_the_defaults_are_the_kernels_and_padding(tmp_path: Path) -> None:
    s = situation_of(build_job(recipe(tmp_path)), {"device": "cuda"}, made_up())
    for knob, value in ((loss_head, "joined"), (vocabulary_padding, 64)):
        assert [one.value for one in knob.default(s, {}) if isinstance(one, Choice)] == [value]
