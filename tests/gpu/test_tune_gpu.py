"""Stacked trials on a GPU: the graph, launched steps and trials alone agree, and the update's kernel with its operations."""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

import flatout as fo
from flatout.engine.optimizers import parse_schedule
from flatout.recipe.load import read_recipe, with_overrides
from flatout.tuning.crew.crew import TrialCrew
from flatout.tuning.crew.own_seats import own_seats
from flatout.tuning.training import stack as stacks
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.candidate import OwnValues, TrialCandidate
from flatout.tuning.training.keyed_dropout import KeyedDropout
from flatout.tuning.training.layout import STACKED, choose_layout
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.stack_steps import GraphSteps, LaunchedSteps
from flatout.tuning.training.stacked_weights import Weights
from flatout.tuning.training.unfolded import GROUPED, UNFOLDED, unfold_convolutions
from flatout.tuning.training.update_forms import UpdatedColumns, UpdateRule

MLP = {"mlp": {"hidden": [32, 16], "dropout": 0.2}}
EACH = [["lr=3e-3"], ["lr=1e-2", "clip=0.5", "schedule=linear"], ["lr=3e-2", "weight_decay=0.1", "model.dropout=0.5"]]


def recipe(**changed: Any) -> fo.Recipe:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1024, 1, 8, 8)).astype(np.float32)
    y = (x.sum((1, 2, 3)) > 0).astype(np.int64) + 2 * (x[:, 0, 0, 0] > 0)
    settings = {"device": "cuda", "precision": "fp32", **changed.pop("settings", {})}
    base = {"data": {"arrays": {"x": x, "y": y}, "holdout": 0.25}, "model": MLP, "batch": 64, "lr": 1e-2, "budget": "100 steps"}
    return fo.Recipe(**{**base, **changed}, settings=settings)


def candidates(base: fo.Recipe, each: Sequence[Sequence[str]]) -> list[TrialCandidate]:
    return [TrialCandidate(number, with_overrides(base, list(overrides))) for number, overrides in enumerate(each)]


@contextmanager
def group_of(ones: Sequence[TrialCandidate]) -> Iterator[Group]:
    group = Group(ones[0].recipe, None)
    try:
        yield group
    finally:
        group.close()


def launched(group: Group, ones: Sequence[TrialCandidate], form: str = GROUPED) -> TrialStack:
    """Without a graph."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            stacks, "steps_for",
            lambda group, seeds, rates, clock: LaunchedSteps(group, [group.feed(seed) for seed in seeds], rates, clock),
        )  # fmt: skip
        return TrialStack(group, ones, form)


def assert_replayed(trainer: TrialStack) -> None:
    assert isinstance(trainer._steps, GraphSteps) and trainer._steps._replay is not None, trainer.degraded
    assert not trainer.degraded


def assert_close(ours: TrialStack, theirs: TrialStack, tolerance: float = 1e-4) -> None:
    for number in theirs.alive:
        expected, found = theirs.state_of(number), ours.state_of(number)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=lambda why: f"{name}: {why}")  # noqa: B023
        assert ours.losses(number).last == pytest.approx(theirs.losses(number).last, rel=1e-2)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"optimizer": "sgd"},
        {"optimizer": {"sgd": {"momentum": 0.8, "nesterov": True}}},
        {"optimizer": "adam", "rates": {"body": 0.1}},
        {"budget": "5000 samples"},  # the last step has fewer rows
        {"settings": {"tier": "pinned"}},
        {"data": {"digits": None, "holdout": 0.3, "draw": "balanced"}},
    ],
    ids=["adamw", "sgd", "nesterov", "adam", "rest", "pinned", "drawn"],
)
def test_the_graph_the_launched_steps_and_trials_alone_agree(changed: dict[str, Any]) -> None:
    ones = candidates(recipe(**changed), EACH)
    with group_of(ones) as group:
        ours, plain, alone = TrialStack(group, ones), launched(group, ones), Alone(group, ones)
        for trainer in (ours, plain, alone):
            trainer.train(7)
            trainer.train(group.total_steps)
        assert_replayed(ours)
        assert_close(ours, plain)
        for number in alone.alive:
            weights = ours.weights_of(number)
            for name, value in alone.model(number).named_parameters():
                torch.testing.assert_close(weights[name], value.detach(), rtol=5e-3, atol=5e-3)
            assert ours.losses(number).last == pytest.approx(alone.losses(number).last, rel=1e-2)
            assert ours.metrics()[number]["accuracy"] == pytest.approx(alone.metrics(number)["accuracy"], abs=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("form", [GROUPED, UNFOLDED])
def test_convolutions(form: str, precision: str) -> None:
    base = recipe(
        model={"convnet": {"channels": [4, 8], "hidden": 16, "dropout": 0.1}},
        settings={"precision": precision},
        budget="20 steps",
    )
    ones = candidates(base, EACH)
    with group_of(ones) as group:
        ours, alone = TrialStack(group, ones, form), Alone(group, ones)
        for trainer in (ours, alone):
            trainer.train(20)
        assert_replayed(ours)
        for number in alone.alive:
            rel = 1e-2 if precision == "fp32" else 0.1
            assert ours.losses(number).last == pytest.approx(alone.losses(number).last, rel=rel)


def test_each_seed_has_its_weights_and_order() -> None:
    ones = candidates(recipe(), [["seed=1"], ["seed=2"], ["seed=1", "lr=3e-3"], ["seed=7"]])
    with group_of(ones) as group:
        ours, plain = TrialStack(group, ones), launched(group, ones)
        for trainer in (ours, plain):
            trainer.train(100)
        assert_replayed(ours)
        assert_close(ours, plain)


def test_dropouts_differ_from_step_to_step_inside_the_graph() -> None:
    """All rows in each batch and a rate of nearly nothing: only the dropped units differ."""
    base = recipe(batch=768, lr=1e-12, schedule="constant", weight_decay=0.0)
    ones = candidates(base, [["model.dropout=0.5"], ["model.dropout=0.2"]])
    with group_of(ones) as group:
        ours, plain = TrialStack(group, ones), launched(group, ones)
        found: list[list[float]] = []
        for trainer in (ours, plain):
            found.append([])
            for step in range(1, 12):
                trainer.train(6 + step)
                found[-1].append(float(trainer.losses(0).last or 0))
        assert_replayed(ours)
        assert len({round(loss, 4) for loss in found[0]}) > 8
        assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_compaction_and_resume() -> None:
    ones = candidates(recipe(), EACH)
    with group_of(ones) as group:
        ours, plain = TrialStack(group, ones), launched(group, ones)
        plain.train(100)
        ours.train(20)
        states = {number: ours.state_of(number) for number in (2, 0)}
        ours.keep([2, 0])
        ours.train(100)
        assert_replayed(ours)
        later = TrialStack(group, [ones[2], ones[0]])
        later.train(9)  # has a graph and another past
        later.resume(20, states)
        later.train(100)
        assert_replayed(later)
        for number in (2, 0):
            for trainer in (ours, later):
                assert trainer.losses(number).last == pytest.approx(plain.losses(number).last, rel=1e-2)
                for name, value in plain.state_of(number).items():
                    torch.testing.assert_close(trainer.state_of(number)[name], value, rtol=1e-3, atol=1e-3)


def test_only_the_trial_that_diverges_fails() -> None:
    ones = candidates(recipe(optimizer="sgd", model={"mlp": {"hidden": [16]}}), [["lr=1e-2"], ["lr=1e30"], ["lr=3e-3"]])
    with group_of(ones) as group, group_of(ones[:1]) as quiet:
        ours, alone = TrialStack(group, ones), TrialStack(quiet, ones[:1])
        for trainer in (ours, alone):
            trainer.train(100)
        assert list(ours.failed) == [1] and "diverged" in ours.failed[1]
        assert ours.losses(0).last == pytest.approx(alone.losses(0).last, rel=1e-2)


def test_a_graph_gives_its_memory_back(device: torch.device) -> None:
    def held() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(device)

    ones = candidates(recipe(model={"mlp": {"hidden": [512, 512]}}), [[f"lr={1e-3 * (1 + one)}"] for one in range(64)])
    with group_of(ones) as group:
        first = TrialStack(group, ones)
        first.train(10)
        del first
        before = held()
        for _ in range(3):
            trainer = TrialStack(group, ones)
            trainer.train(10)
            assert_replayed(trainer)
            whole = held()
            trainer.keep([0, 1])
            assert held() < whole / 2
            del trainer
        assert held() <= before + (8 << 20)


def test_nothing_waits_for_the_device_between_two_looks() -> None:
    torch.zeros(1, device="cuda")
    before = torch.cuda.get_sync_debug_mode()
    asked = [0]

    def arm() -> bool:
        asked[0] += 1
        if asked[0] == 2:
            torch.cuda.set_sync_debug_mode("error")
        return False

    ones = candidates(recipe(budget="600 steps"), EACH)
    with group_of(ones) as group:
        trainer = TrialStack(group, ones)
        try:
            trainer.train(600, arm)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        assert_replayed(trainer)
    assert asked[0] > 4


def test_a_step_that_cannot_be_captured_is_launched_and_the_layout_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TrialStack.gradients

    def waits(self: TrialStack, batch: Any) -> Any:
        found = right(self, batch)
        float(found[0].sum())  # not permitted in a capture
        return found

    ones = candidates(recipe(), EACH)
    with group_of(ones) as group:
        expected = TrialStack(group, ones)
        expected.train(100)
        monkeypatch.setattr(TrialStack, "gradients", waits)
        ours = TrialStack(group, ones)
        ours.train(100)
        assert ours.degraded.startswith("no CUDA graph: ")
        assert_close(ours, expected)
        assert "no CUDA graph: " in choose_layout(group, ones, 20.0).why


def test_the_layout_is_proven_and_measured_with_graphs() -> None:
    ones = candidates(recipe(budget="100000 steps"), [[f"lr={1e-3 * (1 + one)}"] for one in range(16)])
    with group_of(ones) as group:
        layout = choose_layout(group, ones, 20.0)
    assert layout.kind == STACKED and layout.proof.startswith("equal to trials alone")
    assert "no CUDA graph" not in layout.why and "not one kernel" not in layout.why
    assert layout.rates["16 stacked, on the device"] > 2 * layout.rates["serial, on the device"]


SHAPES: dict[str, tuple[int, ...]] = {"a": (70, 30), "b": (70,), "c": (), "d": (33, 130), "e": (8, 3, 3, 3)}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("kind", "nesterov"), [("adamw", False), ("adam", False), ("sgd", False), ("sgd", True)])
def test_the_kernel_updates_as_the_operations_do(kind: str, nesterov: bool, transposed: bool, device: torch.device) -> None:
    pytest.importorskip("triton")
    from flatout.tuning.training.update_kernel import UpdatedByKernel

    def options(row: int) -> dict[str, Any]:
        if kind == "sgd":
            return {"momentum": (0.0, 0.9, 0.5)[row]}
        return {"betas": ((0.9, 0.999), (0.5, 0.9), (0.8, 0.9999))[row], "eps": (1e-8, 1e-3, 1e-6)[row]}

    own = tuple(OwnValues(1e-2, (0.0, 0.1, 0.3)[row], None, parse_schedule("constant"), options(row)) for row in range(3))
    rule = UpdateRule(kind, nesterov, own)
    made = []
    for form in (UpdatedColumns, UpdatedByKernel):
        numbers = torch.Generator().manual_seed(0)
        rows = {name: torch.randn(3, *shape, generator=numbers) for name, shape in SHAPES.items()}
        weights = Weights.of(rows, {"b": 0.1}, device)
        state = {name: torch.zeros_like(weights.flat) for name in ("first", "second")[: 1 if kind == "sgd" else 2]}
        state["count"] = torch.zeros(3, device=device)
        made.append((weights, state, form(rule, weights, state)))
    for step in range(6):
        numbers = torch.Generator().manual_seed(step)
        finite = torch.tensor([True, step not in (0, 3), True], device=device)
        rates = torch.tensor([1e-2, 3e-2, 1e-3], dtype=torch.float64, device=device)
        scale = torch.tensor([1.0, 0.5, 0.1], device=device) if step % 2 else None
        gradients = {name: torch.randn(3, *SHAPES[name], generator=numbers).to(device) for name in made[0][0].shapes}
        for one in gradients.values():
            one[~finite] = torch.nan
        if transposed:  # as backward leaves those of products
            gradients |= {name: one.mT.contiguous().mT for name, one in gradients.items() if one.ndim > 2}
        for weights, _, form in made:
            before = weights.flat[1].clone()
            form.take(list(gradients.values()))
            norms = form.norms()
            form(finite, rates, scale)
            torch.testing.assert_close(norms[0], torch.cat([one[0].flatten() for one in gradients.values()]).norm())
            assert finite[1] or weights.flat[1].equal(before)
            for name, value in form.gradient_of(2).items():
                torch.testing.assert_close(value, gradients[name][2] * (1.0 if scale is None else scale[2]))
    (expected, states, _), (found, others, _) = made
    torch.testing.assert_close(found.flat, expected.flat, rtol=1e-5, atol=1e-6)
    for name, value in states.items():
        torch.testing.assert_close(others[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_kernel_drops_as_the_operations_do(axis: int, dtype: torch.dtype, device: torch.device) -> None:
    pytest.importorskip("triton")
    clock = torch.tensor(5, device=device)
    keys, rates = torch.tensor([123, 99_999, 2**31 - 5]), torch.tensor([0.1, 0.5, 0.0])
    x = torch.randn(3, 4, 700, generator=torch.Generator().manual_seed(0)).to(dtype)

    def on(device: torch.device) -> list[torch.Tensor]:
        def one(x: torch.Tensor, key: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
            module = KeyedDropout(0.1, 1, clock.to(device))
            module.drop_key, module.drop_rate = key, rate
            return module(x)

        given = x.to(device).movedim(0, axis).contiguous().requires_grad_()
        made = vmap(one, in_dims=(axis, 0, 0))(given, keys.to(device), rates.to(device))
        (gradient,) = torch.autograd.grad(made, given, x.to(device))
        return [made.detach().cpu(), gradient.cpu()]

    for ours, expected in zip(on(device), on(torch.device("cpu")), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=0)
        assert (ours == 0).equal(expected == 0)


@pytest.mark.parametrize("size", [2, 3, (2, 1)])
@pytest.mark.parametrize("form", ["trials first", "trials second", "channels last"])
def test_the_kernel_pools_as_torch_does(form: str, size: int | tuple[int, int], device: torch.device) -> None:
    pytest.importorskip("triton")
    from flatout.tuning.training.pool_kernel import pool_by_kernel

    ours, theirs = torch.nn.MaxPool2d(size), torch.nn.MaxPool2d(size)
    assert pool_by_kernel(ours) == [""]
    for shape, dtype in product([(2, 3, 8, 8), (2, 3, 7, 9)], [torch.float32, torch.bfloat16]):
        x = torch.randn(5, *shape, device=device).to(dtype).relu()  # many zeros: the first of them counts
        x[0, 0, 0, 1, 1] = torch.nan
        if form == "trials second":
            x = x.movedim(0, 1).contiguous().movedim(1, 0)
        elif form == "channels last":
            x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
        x.requires_grad_()
        found, expected = vmap(ours)(x), vmap(theirs)(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        gradient = torch.randn_like(expected)
        pairs = [torch.autograd.grad(made, x, gradient)[0] for made in (found, expected)]
        torch.testing.assert_close(*pairs, rtol=0, atol=0)


@pytest.mark.parametrize("form", [GROUPED, UNFOLDED])
def test_the_kernel_adds_biases_as_torch_does(form: str, device: torch.device) -> None:
    pytest.importorskip("triton")
    from flatout.tuning.training.bias_kernel import add_by_kernel

    torch.manual_seed(0)
    shared = nn.ReLU()
    theirs = nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Tanh()), nn.Flatten(),
        nn.Linear(6 * 36, 5), nn.ReLU(inplace=True), nn.Linear(5, 4, bias=False), shared, nn.Linear(4, 4), shared,
    ).to(device)  # fmt: skip
    ours = copy.deepcopy(theirs)
    if form == UNFOLDED:
        unfold_convolutions(ours)
    assert add_by_kernel(ours) == ["0.0", "0.2", "2", "6"]
    weights = {name: torch.randn(3, *one.shape, device=device).requires_grad_() for name, one in theirs.named_parameters()}
    x = torch.randn(7, 3, 2, 8, 8, device=device)

    def found(model: nn.Module) -> list[torch.Tensor]:
        one_batch = vmap(lambda own: functional_call(model, own, (x[:, 0],)))(weights)
        own_batches = vmap(lambda own, batch: functional_call(model, own, (batch,)), in_dims=(0, 1))(weights, x)
        return [one_batch, own_batches, model(x[:, 0]), *torch.autograd.grad((one_batch**2).sum(), list(weights.values()))]

    with torch.backends.cudnn.flags(allow_tf32=False):
        pairs = list(zip(found(ours), found(theirs), strict=True))
    for one, expected in pairs:
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4 * float(expected.detach().abs().max()))


def test_a_study(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2048, 16)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x.sum(1) > 0).astype(np.int64))
    (tmp_path / "recipe.yaml").write_text(
        f"data: {{arrays: {tmp_path / 'rows.npz'}, holdout: 0.25}}\nmodel: {{mlp: {{hidden: [32]}}}}\nbatch: 128\n"
        "lr: 1e-3\nbudget: 200 steps\nsettings: {device: cuda}\n"
    )
    study = fo.tune(tmp_path / "recipe.yaml", {"lr": "1e-4..1e-1"}, trials=32, runs=tmp_path / "runs", cache=tmp_path / "cache")
    (layout, *_) = [event["layout"] for event in study.folder.events() if event["kind"] == "layout"]
    assert layout["kind"] == STACKED and "no CUDA graph" not in layout["why"], layout
    assert study.result["trials"] == 32 and study.result["finished_trials"] >= 1
    best = max(
        score for event in study.folder.events() if event["kind"] == "rung" for score in event["scores"].values() if score
    )
    assert best > 0.9


def test_forks_of_the_command_use_the_device(tmp_path: Path) -> None:
    """The command has imported torch when it forks them; CUDA that had been started by then could not be used in them."""
    (tmp_path / "recipe.yaml").write_text(
        "data: {digits: null, holdout: 0.3}\nmodel: {mlp: {hidden: [16]}}\nbatch: 64\nlr: 1e-3\nbudget: 32 steps\n"
        "settings: {device: cuda}\n"
    )
    words = ["tune", "recipe.yaml", "lr=1e-3..1e-1", "--trials", "4", "--json", "--quiet"]
    environment = {**os.environ, "FLATOUT_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-m", "flatout", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["result"]["finished_trials"] >= 1 and told["asked"]["about"]["device"].startswith("cuda")
    assert not told["result"]["lost_processes"] and told["parts"]["process"] < told["result"]["seconds"]


def test_processes_share_the_device(tmp_path: Path, device: torch.device) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "data: digits\nmodel: {mlp: {hidden: [32]}}\nbatch: 64\nlr: 1e-3\nbudget: 2000 steps\nsettings: {device: cuda}\n"
    )
    crew = TrialCrew(own_seats(read_recipe(tmp_path / "recipe.yaml"), None, ["cuda:0"], None), isolated=True, packed=3)
    try:
        crew.meet()
        alone, together = (crew.rate_packed((0, []), 0.5, count) for count in (1, 3))
        assert alone.steps_s > 0 and together.steps_s > alone.steps_s, "launches of one process leave the device idle"
        # other programs may take and give back memory meanwhile: only what holds beside them is asked for
        assert together.free_bytes is not None and 0 < together.free_bytes < torch.cuda.mem_get_info(device)[1]
        assert together.bytes_each > 100 << 20, "a process has at least its context on the device"
        crew.dismiss_all_but(1)
        assert crew.rate_packed((0, []), 0.2, 1).steps_s > 0, "the one that is left goes on"
    finally:
        crew.stop()
