"""On a GPU: evaluation takes more at once where launching bounds it, and what is read ahead keeps to what was pinned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout as fo
from flatout.data.feeds.feed import PinnedFeed, feed
from flatout.engine.settings import Settings
from flatout.plan.knobs.all import PRICED
from flatout.plan.plan import Prediction
from flatout.plan.price import prices
from flatout.plan.situation import Situation
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.reports import Ask
from flatout.recipe.build import build_job


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def recipe(**settings: Any) -> fo.Recipe:
    pins = {"device": "cuda", "precision": "fp32", **settings}
    return fo.Recipe(data="digits", model=network, batch=8, lr=1e-3, budget="20 steps", settings=pins)


def test_a_small_model_is_evaluated_in_larger_batches_with_the_same_metrics(tmp_path: Path) -> None:
    small = fo.run(recipe(evaluation_batch=0), runs=tmp_path, fresh=True, cache=tmp_path.parent / "cache", planning="off")
    chosen = fo.run(recipe(), runs=tmp_path, fresh=True, cache=tmp_path.parent / "cache", planning="off")
    size = chosen.plan.settings.evaluation_batch
    assert size >= 16 and size % 8 == 0, "launching bounds eight rows of a small model on any GPU"
    assert chosen.result["metrics"]["accuracy"] == pytest.approx(small.result["metrics"]["accuracy"], abs=0.01)
    assert chosen.result["metrics"]["loss"] == pytest.approx(small.result["metrics"]["loss"], rel=1e-3)


@pytest.mark.parametrize("prefetch", [1, 5])
def test_batches_are_the_same_however_many_are_read_ahead(prefetch: int) -> None:
    data = fo.data.digits()
    plain, pinned = feed(data, "pinned", 64, "cuda"), feed(data, "pinned", 64, "cuda", prefetch=prefetch)
    assert isinstance(pinned, PinnedFeed)
    try:
        for _ in range(40):
            one, other = plain.next(), pinned.next()
            assert all(one[name].equal(other[name]) for name in one)
        assert pinned.stats()["depth"] == prefetch
    finally:
        plain.close()
        pinned.close()


def test_deterministic_kernels_have_a_price_or_a_reason_for_none() -> None:
    job, device = build_job(recipe()), torch.device("cuda")
    stands = Settings(device="cuda", deterministic=False)
    bench = Bench(job, device)
    try:
        first = bench.attempt(Ask(stands.to_dict(), None, stands.to_dict(), 0.5))
        assert first.ran, first.why
        s = Situation(job, device, {}, None, Prediction())
        (entry,) = prices(s, PRICED, bench, stands, stands, first.steps_s, most_s=60.0)
    finally:
        bench.close()
    assert entry.name == "deterministic" and entry.value is True and entry.verdict == "rejected"
    assert "the time" in entry.why or "CUBLAS_WORKSPACE_CONFIG" in entry.why
