"""Settings decided without trials: their values, their reasons, and that each can be switched off."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import UsageError
from flatout.cli.training import read_asked
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.feeds.feed import PinnedFeed, feed_options
from flatout.data.feeds.tuning import ReadingBudget
from flatout.data.order.keyed import Order
from flatout.data.source import Batch, Column, Source
from flatout.engine.settings import is_setting, parse_pins, value_of
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.measure.counts import Operation
from flatout.plan import make as planned
from flatout.plan.choose import choose, situation_of
from flatout.plan.knobs import evaluation_batch, log_every, prefetch, reader_threads
from flatout.plan.knobs.all import AFTER, BEFORE, off_value
from flatout.plan.knobs.evaluation_batch import most_held
from flatout.plan.knobs.knob import Decided
from flatout.plan.plan import Choice, Plan
from flatout.plan.situation import Situation
from flatout.recipe.build import build_job
from flatout.testing.knobs import made_up

DECIDED = (*BEFORE, *AFTER)


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "ceilings_of", lambda device, cache, job: made_up())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def recipe(**given: Any) -> fo.Recipe:
    return fo.Recipe(**{"data": "digits", "model": network, "batch": 16, "lr": 1e-3, "budget": "6 steps"} | given)


def planned_for(pins: dict[str, Any] | None = None, **given: Any) -> Plan:
    return choose(build_job(recipe(**given)), {"device": "cpu", **(pins or {})}, made_up(), "test")


@pytest.mark.parametrize("knob", DECIDED, ids=lambda knob: knob.name)
def test_each_setting_can_be_switched_off(knob: Decided, tmp_path: Path) -> None:
    assert is_setting(knob.name) and off_value(knob.name) == knob.off
    assert parse_pins({knob.name: str(knob.off)}) == ({knob.name: knob.off}, [])
    assert value_of(planned_for({knob.name: knob.off}).settings, knob.name) == knob.off
    run = fo.run(recipe(settings={"device": "cpu", knob.name: knob.off}), runs=tmp_path, planning="off")
    assert run.result["steps"] == 6


def test_off_on_the_command_line(tmp_path: Path) -> None:
    written = tmp_path / "recipe.yaml"
    written.write_text("{data: digits, model: mlp, batch: 16, lr: 0.001, budget: 6 steps}")
    asked = read_asked(written, None, None, [knob.name for knob in DECIDED])
    assert asked.pins == {knob.name: knob.off for knob in DECIDED}


@pytest.mark.parametrize("knob", DECIDED, ids=lambda knob: knob.name)
def test_each_decides_its_own_setting_with_a_reason(knob: Decided) -> None:
    s = situation_of(build_job(recipe()), {"device": "cpu"}, made_up())
    choices = [one for one in knob.default(s, {"tier": "resident"}) if isinstance(one, Choice)]
    assert [choice.name for choice in choices] == [knob.name] and choices[0].why


def test_checkpoints_only_at_the_start_and_at_the_end(tmp_path: Path) -> None:
    settings = {"device": "cpu", "checkpoint_every": "end", "failure_every": "1 s", "keep_checkpoints": 99}
    run = fo.run(recipe(budget="40 steps", evaluate=None, settings=settings), runs=tmp_path, planning="off")
    assert run.folder.checkpoints().steps() == [0, 40]


# ---- reading ahead ----


class Slow(Source):
    """Rows of numbers that count how many were read."""

    def __init__(self) -> None:
        self.begun = 0
        self._lock = threading.Lock()

    @property
    def schema(self) -> dict[str, Column]:
        return {"x": Column(torch.int64, ())}

    def __len__(self) -> int:
        return 4000

    def read(self, rows: Tensor) -> Batch:
        with self._lock:
            self.begun += len(rows)
        return {"x": rows}

    def fingerprint(self) -> str:
        return "slow"


def settled(source: Slow, rows: int) -> int:
    """Rows read in total, once at least `rows` were read and reading has stopped."""
    began_s = time.monotonic()
    while source.begun < rows and time.monotonic() - began_s < 20:
        time.sleep(0.001)
    time.sleep(0.05)
    return source.begun


@pytest.mark.parametrize("workers", [1, 3, "auto"])
@pytest.mark.parametrize("depth", [1, 4])
def test_no_more_batches_are_read_ahead_than_were_pinned(workers: int | str, depth: int) -> None:
    source = Slow()
    feed = PinnedFeed(source, Order(0, (4000,)), feed_options(10, "cpu", workers=workers, prefetch=depth))
    try:
        for served in range(1, 6):
            feed.next()
            ahead = 10 * (served + depth)
            assert settled(source, ahead) == ahead
        assert feed.stats()["depth"] == depth
    finally:
        feed.close()


def test_rows_in_memory_are_read_ahead_where_that_was_pinned() -> None:
    data = build_job(recipe()).data
    assert PinnedFeed(data.train, data.sampler(0), feed_options(8, "cpu")).workers == 0
    assert PinnedFeed(data.train, data.sampler(0), feed_options(8, "cpu", prefetch=2)).workers == 1


def test_evaluation_keeps_to_what_was_pinned_too() -> None:
    source = Slow()
    batches = iter(EvalFeed(source, (), 10, "cpu", "streamed", threads=1, prefetch=2))
    before = source.begun
    for served in range(1, 4):
        next(batches)
        ahead = before + 10 * (served + 2)
        assert settled(source, ahead) == ahead
    batches.close()  # type: ignore[attr-defined]


def test_a_prefetch_that_is_no_number_is_refused() -> None:
    for wrong in (0, "many"):
        with pytest.raises(UsageError, match="prefetch must be 'auto' or a number of batches"):
            fo.loader({"x": torch.zeros(9, 2)}, 3, device="cpu", tier="pinned", prefetch=wrong)


def read_from(source: Source, device: str = "cpu", **pins: Any) -> Situation:
    s = situation_of(build_job(recipe()), {"device": "cpu"}, made_up())
    return replace(
        s, job=replace(s.job, data=replace(s.job.data, train=source, prepare=())), device=torch.device(device), pins=pins
    )


def why(knob: Decided, s: Situation, tier: str) -> str:
    (choice,) = knob.default(s, {"tier": tier})
    assert choice.value == 0
    return choice.why


def test_reading_ahead_is_explained_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadingBudget, "here", lambda: ReadingBudget(cores=8, memory_bytes=10**10))
    assert why(reader_threads, read_from(Slow(), "cuda"), "streamed").startswith("starts with 7 on 8 cores; more if")
    assert why(reader_threads, read_from(Slow()), "streamed").startswith("starts with 8, one per core")
    assert why(prefetch, read_from(Slow(), "cuda"), "pinned").startswith("starts with 9 for 7 threads; more if")
    assert why(prefetch, read_from(Slow(), reader_threads=3), "pinned").startswith("5: one for each of 3 threads, plus 2")
    for knob in (reader_threads, prefetch):
        assert "nothing to read ahead" in why(knob, situation_of(build_job(recipe()), {"device": "cpu"}, made_up()), "resident")


# ---- evaluation ----


def measured(value: float) -> MeasuredRate:
    return MeasuredRate(value, value, value, 10)


def gpu(launch_s: float) -> Ceilings:
    return Ceilings("cuda:0", {"fp32": measured(5e13)}, copy_bytes_per_s=measured(3e12), launch_s=measured(launch_s))


def evaluated(monkeypatch: pytest.MonkeyPatch, ceilings: Ceilings | None, free: float = 8e10, **given: Any) -> Choice:
    monkeypatch.setattr(evaluation_batch, "free_bytes", lambda device: int(free))
    cpu = ceilings is not None and ceilings.device == "cpu"
    s = situation_of(build_job(recipe(**given)), {"device": "cpu"}, ceilings)
    s = s if cpu else replace(s, device=torch.device("cuda"))
    (choice,) = evaluation_batch.default(s, {"tier": "resident"})
    assert isinstance(choice, Choice)
    return choice


def test_a_launch_bound_evaluation_uses_larger_batches_up_to_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = len(build_job(recipe()).data.validation or ())
    found = evaluated(monkeypatch, gpu(1e-5))
    assert found.value % 16 == 0 and rows / 2 < found.value <= rows
    assert "as fast as 16, which is launch-bound" in found.why and "of 80 GB free" in found.why


def test_memory_limits_the_evaluation_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    most = evaluated(monkeypatch, gpu(1e-5)).value
    short = evaluated(monkeypatch, gpu(1e-5), free=1e6)
    assert 16 < short.value < most
    none = evaluated(monkeypatch, gpu(1e-5), free=1e5)
    assert none.value == 0 and none.why.startswith("same as training: twice as many would use")


def test_without_a_gain_the_evaluation_batch_is_the_training_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluated(monkeypatch, gpu(1e-12))
    assert found.value == 0 and "too little" in found.why
    assert evaluated(monkeypatch, None).why.endswith("run: flatout probe")
    assert "only 359 rows" in evaluated(monkeypatch, gpu(1e-5), batch=300).why


def test_rows_that_are_not_resident_keep_the_training_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    s = replace(situation_of(build_job(recipe()), {"device": "cpu"}, gpu(1e-5)), device=torch.device("cuda"))
    (choice,) = evaluation_batch.default(s, {"tier": "pinned"})
    assert isinstance(choice, Choice) and choice.value == 0 and "limits the speed" in choice.why
    bare = replace(s, job=replace(s.job, data=replace(s.job.data, validation=None)))
    (choice,) = evaluation_batch.default(bare, {"tier": "resident"})
    assert isinstance(choice, Choice) and (choice.value, choice.why) == (0, "nothing is evaluated")


def test_peak_memory_counts_only_values_still_needed() -> None:
    def step(reads: dict[int, int], writes: dict[int, int]) -> Operation:
        return Operation("op", "other", torch.float32, 0, tuple(reads.items()), tuple(writes.items()))

    chain = [step({0: 5}, {1: 10}), step({1: 10}, {2: 20}), step({2: 20}, {3: 30}), step({3: 30}, {4: 1})]
    assert most_held(chain) == 50  # the third reads 20 and writes 30; earlier values are freed
    assert most_held([*chain, step({1: 10}, {5: 1})]) == 60  # a skip connection is kept
    assert most_held([]) == 0


def test_metrics_are_the_same_for_any_evaluation_batch(tmp_path: Path) -> None:
    found = []
    for size in (1, 7, 16, 1000):
        settings = {"device": "cpu", "evaluation_batch": size}
        found.append(fo.run(recipe(settings=settings), runs=tmp_path, fresh=True, planning="off").result["metrics"])
    for metrics in found[1:]:
        assert metrics["accuracy"] == found[0]["accuracy"]
        assert metrics["loss"] == pytest.approx(found[0]["loss"], rel=1e-6)


# ---- log points ----


def test_log_points_are_explained_in_steps() -> None:
    s = situation_of(build_job(recipe(budget="1000000 steps")), {"device": "cpu"}, made_up())
    (choice,) = log_every.default(s, {"tier": "resident", "fused_optimizer": False})
    assert isinstance(choice, Choice) and choice.value == 0
    assert "about twice a second: about every" in choice.why
    (unknown,) = log_every.default(situation_of(s.job, {"device": "cpu"}, None), {"tier": "resident"})
    assert isinstance(unknown, Choice) and unknown.why.startswith("about twice a second;")


def test_a_run_shorter_than_a_log_interval_is_explained() -> None:
    s = situation_of(build_job(recipe(budget="6 steps")), {"device": "cpu"}, made_up())
    (choice,) = log_every.default(s, {"tier": "resident", "fused_optimizer": False})
    assert isinstance(choice, Choice) and "and at the end" in choice.why
    assert "about every" not in choice.why


@pytest.mark.parametrize("written", ["1e3", "1000", 1000, 1000.0, "1000.0"])
def test_integers_may_have_any_recipe_format(written: object) -> None:
    values, problems = parse_pins({"log_every": written})
    assert (values, problems) == ({"log_every": 1000}, []) and isinstance(values["log_every"], int)
