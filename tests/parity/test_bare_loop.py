"""flatout and a loop of plain PyTorch, given the same model, seed and batches, end with the same weights, bit for bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_engine_kit import dropping_net, equal, net, quick, recipe, train, weights
from torch import Tensor, nn

import flatout as fo
from flatout.data.feeds.feed import feed
from flatout.recipe.build import build_job

BATCH, SAMPLES, WARMUP, LR, DECAY = 16, 200, 3, 0.02, 0.1  # 200 samples: twelve whole batches and half of one
STEPS = math.ceil(SAMPLES / BATCH)


def asked(**given: Any) -> fo.Recipe:
    schedule = {"cosine": {"warmup": WARMUP}}
    return recipe(batch=BATCH, lr=LR, weight_decay=DECAY, schedule=schedule, budget=f"{SAMPLES} samples", seed=7, **given)


def factor(step: int, samples: int) -> float:
    if step < WARMUP:
        return (step + 1) / (WARMUP + 1)
    warm = WARMUP / STEPS
    return 0.5 * (1 + math.cos(math.pi * max(0.0, samples / SAMPLES - warm) / (1 - warm)))


def bare(built: fo.Recipe, optimizer: Any, clip: float | None = None) -> dict[str, Tensor]:
    job = build_job(built)
    model: nn.Module = job.model.train()
    batches = feed(job.data, "resident", BATCH, "cpu", seed=7)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    updates = optimizer([{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}], lr=LR)
    torch.manual_seed(7)
    seen = 0
    for step in range(STEPS):
        batch = batches.next(min(BATCH, SAMPLES - seen))
        for group in updates.param_groups:
            group["lr"] = LR * factor(step, seen)
        updates.zero_grad()
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        updates.step()
        seen += len(batch["y"])
    return dict(model.state_dict())


def adamw(groups: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=lr, fused=True)


def sgd(groups: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=lr, momentum=0.9, fused=True)


def nesterov(groups: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True, fused=True)


def plain_sgd(groups: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=lr, fused=True)


def adam(groups: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=lr, betas=(0.8, 0.9), eps=1e-6, fused=True)


@pytest.mark.parametrize("clip", [None, 0.05], ids=["unclipped", "clipped"])
@pytest.mark.parametrize(
    ("written", "optimizer"),
    [
        ("adamw", adamw),
        ("sgd", sgd),
        ({"sgd": {"nesterov": True}}, nesterov),
        ({"sgd": {"momentum": 0.0}}, plain_sgd),
        ({"adam": {"betas": [0.8, 0.9], "eps": 1e-6}}, adam),
    ],
    ids=["adamw", "sgd", "nesterov", "sgd-without-momentum", "adam"],
)
def test_the_same_weights_as_a_bare_loop(tmp_path: Path, written: Any, optimizer: Any, clip: float | None) -> None:
    built = asked(model=net, optimizer=written, clip=clip)
    run = train(tmp_path, built)
    assert run.result["samples"] == SAMPLES and run.result["steps"] == STEPS
    with quick():
        assert equal(weights(run), bare(built, optimizer, clip))


def test_dropout_draws_the_same_numbers(tmp_path: Path) -> None:
    built = asked(model=dropping_net)
    run = train(tmp_path, built)
    with quick():
        assert equal(weights(run), bare(built, adamw))


@pytest.mark.parametrize(
    "settings", [{"tier": "pinned"}, {"log_every": 1, "checkpoint_every": "2 steps"}, {"evaluation_batch": 5}], ids=str
)
def test_how_it_is_carried_out_does_not_change_what_is_learned(tmp_path: Path, settings: dict[str, Any]) -> None:
    plain = train(tmp_path, asked(model=dropping_net))
    other = train(tmp_path, asked(model=dropping_net, settings=settings))
    assert plain.name != other.name and equal(weights(plain), weights(other))


@pytest.mark.parametrize("written", ["adamw", "sgd"])
def test_an_optimizer_that_is_not_fused_agrees(tmp_path: Path, written: str) -> None:
    fused = weights(train(tmp_path, asked(model=net, optimizer=written)))
    other = weights(train(tmp_path, asked(model=net, optimizer=written, settings={"fused_optimizer": False})))
    for name in fused:
        torch.testing.assert_close(fused[name], other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"maximize": True}], ids=str)
def test_an_optimizer_of_ones_own_keeps_its_options(tmp_path: Path, options: dict[str, Any]) -> None:
    def own(groups: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW([{k: v for k, v in g.items() if k != "factor"} for g in groups], lr=lr, fused=True, **options)

    built = asked(model=net, optimizer=own)
    run = train(tmp_path, built)
    with quick():
        assert equal(weights(run), bare(built, own))
