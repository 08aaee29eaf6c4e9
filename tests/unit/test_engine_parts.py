"""What is trained and how fast: decay groups, a rate for each part, frozen parts, averages, weights from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import Net, equal, kinds, net, quick, recipe, train, weights
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import FlatoutError, UsageError
from flatout.data.feeds.feed import feed
from flatout.engine.ema import Average
from flatout.engine.optimizers import decay_groups
from flatout.recipe.build import build_job


def at_start(asked: fo.Recipe) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in build_job(asked).model.state_dict().items()}


def test_matrices_decay_and_nothing_else_does() -> None:
    model = Net()
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    decay = {by_id[id(p)]: group["weight_decay"] for group in decay_groups(model, 0.1, {}) for p in group["params"]}
    assert decay == {
        "body.weight": 0.1, "head.weight": 0.1, "body.bias": 0.0, "norm.weight": 0.0, "norm.bias": 0.0, "head.bias": 0.0,
    }  # fmt: skip


class Still(Net):
    """Its gradient is zero: only decay can change a weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0


def test_decay_of_a_run_shrinks_matrices_only(tmp_path: Path) -> None:
    asked = recipe(
        model=Still, weight_decay=0.1, lr=0.1, schedule="constant", optimizer={"sgd": {"momentum": 0}}, budget="1 steps"
    )
    before, after = at_start(asked), weights(train(tmp_path, asked))
    for name, tensor in before.items():
        expected = tensor * (1 - 0.1 * 0.1) if tensor.ndim == 2 else tensor
        torch.testing.assert_close(after[name], expected, rtol=1e-6, atol=0)


def test_a_rate_for_each_part(tmp_path: Path) -> None:
    """After one step of plain SGD the change is the rate times the gradient, so it scales with the factor."""
    given: dict[str, Any] = {
        "optimizer": {"sgd": {"momentum": 0}},
        "weight_decay": 0,
        "budget": "1 steps",
        "schedule": "constant",
    }
    start = at_start(recipe())
    plain = weights(train(tmp_path, **given))
    scaled = weights(train(tmp_path, **given, rates={"body.*": 0.25, "head.bias": 2}))
    for name, begun in start.items():
        factor = 0.25 if name.startswith("body") else 2 if name == "head.bias" else 1
        torch.testing.assert_close(scaled[name] - begun, factor * (plain[name] - begun), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_frozen_parts_do_not_change_by_a_bit(tmp_path: Path, optimizer: str) -> None:
    asked = recipe(freeze=("body.*", "norm.*"), weight_decay=0.1, optimizer=optimizer, ema=0.9, clip=1.0)
    before, after = at_start(asked), weights(train(tmp_path, asked))
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) == name.startswith(("body", "norm")), name


class Partial(Net):
    """One of its parts takes no part: as torch has it, what has no gradient does not decay either."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(4, 4)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_parts_without_a_gradient_do_not_change(tmp_path: Path, optimizer: str) -> None:
    asked = recipe(model=Partial, weight_decay=0.1, optimizer=optimizer, clip=1.0)
    before, after = at_start(asked), weights(train(tmp_path, asked))
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) == name.startswith("unused"), name


def test_nothing_left_to_train_is_said(tmp_path: Path) -> None:
    with pytest.raises(FlatoutError, match="leaves no parameter to train"):
        train(tmp_path, freeze=("*",))
    with pytest.raises(UsageError, match="freeze fewer"):
        decay_groups(net().requires_grad_(False), 0.1, {})


def test_weights_from_another_run(tmp_path: Path) -> None:
    first = train(tmp_path / "first", seed=1)
    asked = recipe(init_from=first.path, freeze=("body.*",), seed=2)
    assert equal(at_start(asked), weights(first))
    second = train(tmp_path / "second", asked)
    assert torch.equal(weights(second)["body.weight"], weights(first)["body.weight"])
    assert not torch.equal(weights(second)["head.weight"], weights(first)["head.weight"])
    skipped = at_start(recipe(init_from={"path": str(first.path), "skip": ["head.*"]}, seed=2))
    assert torch.equal(skipped["body.weight"], weights(first)["body.weight"])
    assert torch.equal(skipped["head.weight"], at_start(recipe(seed=2))["head.weight"])


def test_weights_from_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FlatoutError, match="nowhere"):
        train(tmp_path / "runs", init_from=tmp_path / "nowhere")
    assert not (tmp_path / "runs").exists()


def test_the_average_is_the_one_made_by_hand(tmp_path: Path) -> None:
    asked = recipe(ema=0.8, optimizer={"sgd": {"momentum": 0}}, weight_decay=0, schedule="constant", lr=0.1)
    run = train(tmp_path, asked)
    job = build_job(asked)
    batches = feed(job.data, "resident", 16, "cpu", seed=0)
    average = {name: parameter.detach().clone() for name, parameter in job.model.named_parameters()}
    with quick():
        for _ in range(12):
            batch = batches.next()
            job.model.zero_grad()
            nn.functional.cross_entropy(job.model(batch["x"]), batch["y"]).backward()
            with torch.no_grad():
                for name, parameter in job.model.named_parameters():
                    assert parameter.grad is not None
                    parameter -= 0.1 * parameter.grad
                    average[name] = 0.8 * average[name] + 0.2 * parameter
    for name, tensor in weights(run).items():
        torch.testing.assert_close(tensor, average[name], rtol=1e-5, atol=1e-6)
    last = run.folder.checkpoints().load(12)
    assert not torch.equal(last["model"]["head.weight"], weights(run)["head.weight"]), "training went on with its own weights"
    assert fo.evaluate(run, device="cpu")["loss"] == pytest.approx(run.result["metrics"]["loss"], rel=1e-5)


def test_the_average_leaves_the_weights_as_they_were() -> None:
    model = net()
    average = Average(model, 0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="on the way"), average.in_place():
        assert not torch.equal(model.state_dict()["head.bias"], own["head.bias"])
        raise RuntimeError("on the way")
    assert equal(dict(model.state_dict()), own)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh()) for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def test_activation_checkpointing_changes_nothing_but_memory(tmp_path: Path) -> None:
    recomputed = 0

    def count(module: nn.Module, given: Any) -> None:
        nonlocal recomputed
        recomputed += module.training

    model = Stack()
    plain = train(tmp_path, model=model)
    model.blocks[0][0].register_forward_pre_hook(count)
    on = train(tmp_path, model=model, settings={"activation_checkpointing": True})
    assert recomputed == 2 * 12, "each block runs a second time in the backward"
    assert equal(weights(plain), weights(on)) and weights(plain).keys() == weights(on).keys()
    assert not kinds(on, "degraded")


def test_activation_checkpointing_without_blocks_is_said(tmp_path: Path) -> None:
    run = train(tmp_path, settings={"activation_checkpointing": True})
    (event,) = kinds(run, "degraded")
    assert event["what"] == "activation_checkpointing" and "activation_checkpointing" in run.explain()


class Smallest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def test_compiled_learns_the_same(tmp_path: Path) -> None:
    """Cold compiles take many seconds, so there is this one. 100 samples: the last batch is short and runs eagerly."""
    given: dict[str, Any] = {"model": Smallest, "budget": "100 samples", "settings": {"compile": "on"}}
    plain = train(tmp_path, model=Smallest, budget="100 samples")
    run = train(tmp_path, **given)
    assert run.result["steps"] == 7 and run.result["ledger"]["compile"] > 0
    for name, tensor in weights(plain).items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_other_precisions_learn_and_keep_float32_weights(tmp_path: Path, precision: str) -> None:
    exact = train(tmp_path, budget="20 steps")
    run = train(tmp_path, budget="20 steps", settings={"precision": precision})
    assert run.result["metrics"]["loss"] == pytest.approx(exact.result["metrics"]["loss"], rel=0.05)
    assert all(tensor.dtype == torch.float32 for tensor in weights(run).values())


def test_the_loss_scale_is_kept(tmp_path: Path) -> None:
    """It starts high on purpose: a few steps overflow, halve it, and are not counted as bad ones."""
    huge = 3e4 * torch.ones(120, 6)
    data = fo.data.arrays(huge, torch.arange(120) % 3)
    run = train(tmp_path, data=data, model=Smallest, budget="20 steps", clip=1.0, settings={"precision": "fp16"})
    kept = run.folder.checkpoints().load(20)["scale"]
    assert 0 < float(kept["scale"]) < 2**16 and int(kept["growth"]) > 0
    assert run.result["skipped_steps"] == 0 and run.result["rollbacks"] == 0
    assert all(tensor.isfinite().all() for tensor in weights(run).values())
