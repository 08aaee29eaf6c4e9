"""Training under a budget of tokens a batch: the plan's batches, exact counts, exact resumes, honest rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_engine_data import stopped_at
from test_engine_kit import equal, kinds, recipe, train, weights
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import DataError, ModelError, RecipeError, Stopped, UsageError
from flatout.data.data import Data
from flatout.data.feeds.bucketed import BucketFeed
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.feeds.feed import feed_options
from flatout.data.sources.texts.sequence_source import SequenceSource
from flatout.engine.evaluation import evaluate
from flatout.objectives.build import build as build_objective
from flatout.recipe.load import read_recipe

TOKENS, BATCH, ROWS = 160, 12, 90
PLAIN: dict[str, Any] = {"precision": "fp32", "device": torch.device("cpu")}
_seen: list[Tensor] = []


class Counter(nn.Module):
    """Which of its two classes a row is: the mean of what its tokens mean, padding left out."""

    def __init__(self) -> None:
        super().__init__()
        self.meaning = nn.Embedding(200, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            _seen.append(x.clone())
        inside = (x > 0).unsqueeze(2)
        return self.head((self.meaning(x) * inside).sum(1) / inside.sum(1).clamp(min=1))


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    _seen.clear()


def rows() -> list[list[int]]:
    """Row n begins with n + 1; lengths from 1 to 40."""
    draw = np.random.default_rng(0)
    return [[number + 1, *draw.integers(100, 200, draw.integers(0, 40)).tolist()] for number in range(ROWS)]


def sentences(**options: Any) -> Data:
    given = rows()
    return fo.data.sequences(given, [len(row) > 20 for row in given], **{"vocabulary": 200, "tokens": TOKENS, **options})


def asked(**given: Any) -> fo.Recipe:
    return recipe(**{"data": sentences(holdout=0.2), "model": Counter, "batch": BATCH, **given})


def feed_of(data: Data, seed: int = 0, **options: Any) -> BucketFeed:
    assert isinstance(data.train, SequenceSource)
    return BucketFeed(data.train, feed_options(BATCH, "cpu", seed=seed), **options)


def test_a_run_sees_the_batches_that_the_loader_serves(tmp_path: Path) -> None:
    run = train(tmp_path, asked(budget="2 epochs", seed=3))
    with fo.loader(sentences(holdout=0.2), BATCH, device="cpu", seed=3) as loader:
        expected = [batch["x"] for _ in range(2) for batch in loader]
    assert len(_seen) == len(expected) == run.result["steps"]
    assert all(torch.equal(one, other) for one, other in zip(_seen, expected, strict=True))
    assert all(x.numel() <= TOKENS and len(x) <= BATCH for x in _seen) and len({x.shape for x in _seen}) > 3
    firsts = torch.cat([x[:, 0] for x in _seen]).tolist()
    assert run.result["samples"] == len(firsts) == 2 * len(set(firsts))  # every row twice


def test_a_trial_measures_the_memory_of_the_worst_batches_wherever_they_come() -> None:
    from flatout.engine.settings import Settings
    from flatout.plan.trials.bench import Bench
    from flatout.recipe.build import build_job

    data = sentences()
    shapes = [tuple(batch["x"].shape) for batch in fo.loader(data, BATCH, device="cpu", seed=3)]
    bench = Bench(build_job(asked(data=data, seed=3)), torch.device("cpu"))
    _seen.clear()
    held = bench.held(Settings().to_dict(), 1)
    bench.close()
    tried = {tuple(x.shape) for x in _seen}
    assert not held.failure and held.peak_bytes > 0
    assert max(length for _, length in shapes) in {length for _, length in tried}
    assert max(rows * length for rows, length in shapes) in {rows * length for rows, length in tried}


@pytest.mark.parametrize("budget", ["7 steps", "23 steps"])
def test_a_budget_in_steps_is_that_many(tmp_path: Path, budget: str) -> None:
    run = train(tmp_path, asked(budget=budget))
    assert run.result["steps"] == int(budget.split()[0]) == len(_seen)
    assert run.result["samples"] == sum(map(len, _seen))
    assert kinds(run, "started")[0]["total_steps"] == run.result["steps"]


def test_a_budget_in_samples_cuts_the_last_batch(tmp_path: Path) -> None:
    run = train(tmp_path, asked(budget="31 samples"))
    assert run.result["samples"] == 31 == sum(map(len, _seen))


def test_rates_count_tokens_and_no_padding(tmp_path: Path) -> None:
    data = sentences()
    run = train(tmp_path, asked(data=data, budget="1 epoch"))
    mean = sum(map(len, rows())) / ROWS
    assert run.result["tokens_per_s"] == pytest.approx(mean * run.result["samples_per_s"])
    assert data.tokens_per_row == pytest.approx(mean)


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", asked(budget="30 steps"))
    _seen.clear()
    with pytest.raises(Stopped):
        train(tmp_path / "cut", asked(budget="30 steps"), observers=[stopped_at(11)])
    before = len(_seen)
    _seen.clear()  # the model's code names it: with other content it would be another model
    resumed = train(tmp_path / "cut", asked(budget="30 steps"))
    assert 11 <= before < 30 and before + len(_seen) == 30
    assert equal(weights(resumed), weights(whole)) and resumed.result["steps"] == 30


def test_evaluations_come_at_the_steps_asked_for(tmp_path: Path) -> None:
    run = train(tmp_path, asked(budget="25 steps", evaluate="7 steps"))
    assert [event["step"] for event in kinds(run, "evaluation")] == [7, 14, 21, 25]


def test_compiled_once_for_all_shapes(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", asked(model=Summer, budget="12 steps"))
    compiled = train(tmp_path / "compiled", asked(model=Summer, budget="12 steps", settings={"compile": "on"}))
    for name, weight in weights(plain).items():
        torch.testing.assert_close(weights(compiled)[name], weight, rtol=1e-4, atol=1e-5)


class Summer(Counter):
    def forward(self, x: Tensor) -> Tensor:
        inside = (x > 0).unsqueeze(2)
        return self.head((self.meaning(x) * inside).sum(1) / inside.sum(1).clamp(min=1))


def test_a_place_is_a_number_of_samples() -> None:
    data = sentences()
    feed, again = feed_of(data, seed=5), feed_of(data, seed=5, resident=False)
    steps = feed.steps_until(ROWS)
    for step in range(2 * steps):
        assert feed.samples_after(step) == feed.position and feed.steps_until(feed.position) == step
        size = feed.next_size(1000)
        feed.next()
        assert feed.samples_after(step + 1) == feed.position == again.position + size
        if size > 2:  # cut short, and the rest of it next
            first = again.next(size - 2)
            assert again.next_size(1000) == 2
            rest = again.next(again.next_size(1))
            assert len(first["x"]) + len(rest["x"]) == size - 1 and len(again.next()["x"]) == 1
        else:
            again.next()
    feed.seek(ROWS + 17)
    again.seek(ROWS + 17)
    assert all(torch.equal(feed.next()["x"], again.next()["x"]) for _ in range(steps))
    with pytest.raises(UsageError, match=r"call next_size\(\) first"):
        feed.next(10_000)


def test_evaluation_pads_to_like_lengths_and_gives_the_same_metrics(tmp_path: Path) -> None:
    given = rows()
    long = [[1, *[150] * 199], [2, 3]]  # longer than a batch may be
    data = sentences(validation=([*given[:40], *long], [len(row) > 20 for row in [*given[:40], *long]]))
    assert data.validation is not None
    feed = EvalFeed(data.validation, (), BATCH, "cpu", any_order=True)
    batches = list(feed)
    assert len(feed) == len(batches) and sum(len(batch["x"]) for batch in batches) == 42
    assert sum(batch["x"].numel() for batch in batches) < 3 * sum(map(len, [*given[:40], *long]))
    plain = EvalFeed(data.validation, (), BATCH, "cpu")
    assert [batch["x"].shape[1] for batch in plain] == [200] * 4
    run = train(tmp_path, asked(data=data, budget="1 epoch"))
    found = evaluate(Fixed(), build_objective("classify", ["x"]), feed, **PLAIN)
    assert found == pytest.approx(evaluate(Fixed(), build_objective("classify", ["x"]), plain, **PLAIN))
    assert fo.evaluate(run) == pytest.approx({k: v for k, v in run.result["metrics"].items() if k != "train_loss"})


class Fixed(Counter):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()


def test_a_gpt_from_a_recipe_file(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "ab" * (number % 23) + "c", "kind": "x"}) for number in range(60)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    written = """
data:
  sequences: lines.jsonl
  tokens: 256
  holdout: 0.2
model:
  gpt: {layers: 1, heads: 2, width: 16}
objective: next_token
batch: 16
lr: 1e-2
budget: 3 epochs
settings: {device: cpu}
"""
    (tmp_path / "recipe.yaml").write_text(written)
    run = train(tmp_path / "runs", read_recipe(tmp_path / "recipe.yaml"))
    assert run.result["samples"] == 3 * 48 and run.result["metrics"]["loss"] < 5
    (tmp_path / "more.jsonl").write_text("\n".join(lines[:9]))
    assert fo.evaluate(run, str(tmp_path / "more.jsonl"))["loss"] < 5
    assert len(fo.predict(run, str(tmp_path / "more.jsonl"))["prediction"]) == 9
    graph = next(choice for choice in run.result["plan"]["choices"] if choice["name"] == "graph")
    assert graph["value"] is False


def test_other_rows_of_tokens_are_predicted(tmp_path: Path) -> None:
    run = train(tmp_path, asked(budget="2 epochs"))
    _seen.clear()
    given = [[5, 150, 151], [6] * 30, [7]]
    listed = fo.predict(run, given)
    held = fo.predict(run, fo.data.sequences(given, [False, True, False], vocabulary=200, tokens=64))
    assert len(listed["prediction"]) == 3
    for name in listed:
        np.testing.assert_allclose(listed[name], held[name], rtol=1e-5, atol=1e-6)
    with pytest.raises(DataError, match="a row of x is"):
        fo.predict(run, [[5] * 900])


def test_more_rows_asked_for_than_there_are(tmp_path: Path) -> None:
    assert train(tmp_path, asked(batch=500, budget="1 epoch")).result["samples"] == 72


def test_a_model_of_one_length_fails_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="failed on its first batch"):
        train(tmp_path / "runs", asked(model="mlp"))
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_what_can_not_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1 has 30 tokens, 32 when padded .* a batch may have 31: raise tokens"):
        fo.data.sequences([[1], [2] * 30], tokens=31)
    with pytest.raises(DataError, match="tokens is a number of tokens"):
        fo.data.sequences([[1], [2]], tokens=0)
    with pytest.raises(DataError, match="every row has one token"):
        fo.data.sequences([[1], [2]], tokens=8)
    with pytest.raises(DataError, match="leave out draw"):
        sentences(draw="balanced")
    (tmp_path / "lines.jsonl").write_text('{"text": "ab"}\n' * 4)
    (tmp_path / "recipe.yaml").write_text(
        "data: {sequences: lines.jsonl, tokens: many, windows: 3}\nmodel: gpt\nbatch: 2\nlr: 1\nbudget: 1 step\n"
    )
    with pytest.raises(RecipeError) as error:
        read_recipe(tmp_path / "recipe.yaml")
    assert "tokens: expected a whole number" in str(error.value) and "no option 'windows'" in str(error.value)
