"""What a whole-step graph needs, and what happens where it can't be had. The graphs themselves are tested on a GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import train

import flatout as fo
from flatout.base.errors import RecipeError
from flatout.engine import graph
from flatout.engine.graph import GraphStep
from flatout.engine.settings import Settings
from flatout.plan import choose
from flatout.plan.knobs.all import conflicts


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(graph=True), "graph=on needs a CUDA device"),
        (Settings(precision="tf32"), "tf32 needs a GPU; on a CPU it would be fp32: --off precision"),
        (Settings(attention="cudnn"), "attention=cudnn needs a GPU; the run is on a CPU: --off attention"),
        (Settings(precision="fp16", fused_optimizer=False), "fp16 needs a fused optimizer"),
    ],
)
def test_settings_that_can_not_go_together(settings: Settings, words: str) -> None:
    (problem,) = conflicts(settings)
    assert words in problem
    assert conflicts(Settings(graph=True, device="cuda:0", tier="pinned")) == []


def test_a_graph_on_a_cpu_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="graph=on needs a CUDA device"):
        train(tmp_path, settings={"graph": True})
    assert list(tmp_path.iterdir()) == []


class Uncapturable:
    """Warms up, which changes everything, and then can't be recorded."""

    def __init__(self, step: Any, feed: Any, rows: int, slots: int) -> None:
        self.step, self.feed, self.rows = step, feed, rows

    def capture(self, saved_state: Any, restore: Any) -> None:
        before, position = saved_state(), self.feed.position
        for _ in range(3):
            self.step.attempt(self.feed.next(), self.rows)
        self.step.records.drain()
        restore(before)
        self.feed.seek(position)
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be ...")


def test_a_step_that_can_not_be_captured_trains_without_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = fo.data.arrays(torch.randn(64, 6), torch.randint(0, 3, (64,)))
    plain = train(tmp_path / "plain", data=data, budget="10 steps")
    monkeypatch.setattr(choose, "conflicts", lambda settings: [])
    monkeypatch.setattr(graph, "GraphStep", Uncapturable)
    run = train(tmp_path / "graph", data=data, budget="10 steps", settings={"graph": True})
    (event,) = [event for event in run.events() if event["kind"] == "degraded"]
    assert event["what"] == "graph" and "operation not permitted" in event["why"] and "might be" not in event["why"]
    assert run.result["steps"] == 10 and "degraded: graph" in run.explain()
    assert run.result["metrics"]["train_loss"] == pytest.approx(plain.result["metrics"]["train_loss"], abs=1e-6)


class Replayed(GraphStep):
    """The graph's own step, its look-ups and its records, run again instead of replayed: all but the capture itself."""

    def _record(self) -> None:
        self.feed.load()
        for _ in range(3):
            self._once()
        self._replay = self._again

    def _again(self) -> None:
        kept, self.step.records = self.step.records, self.records
        self._once()
        self.step.records = kept


@pytest.mark.parametrize(
    ("budget", "rates", "tier"),
    [
        ("37 steps", {}, "resident"),
        ("0.2 s", {}, "resident"),
        ("37 steps", {"head.*": 0.1}, "pinned"),
        ("0.2 s", {"head.*": 0.1}, "pinned"),
    ],
)
def test_replays_follow_the_schedule_and_keep_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: dict[str, float], budget: str, tier: str
) -> None:
    data = fo.data.arrays(torch.randn(64, 6), torch.randint(0, 3, (64,)))
    asked: dict[str, Any] = {"data": data, "budget": budget, "rates": rates, "schedule": {"cosine": {"warmup": 5}}}
    monkeypatch.setattr(choose, "conflicts", lambda settings: [])
    monkeypatch.setattr(graph, "GraphStep", Replayed)
    run = train(tmp_path / "graph", **asked, settings={"graph": True, "log_every": 8, "tier": tier})
    steps = [event for event in run.events() if event["kind"] == "step"]
    monkeypatch.undo()
    plain = train(tmp_path / "plain", **asked, settings={"log_every": 8})
    if budget == "0.2 s":  # rates are then known one step at a time
        assert steps and all(math.isfinite(event["loss"]) and event["lr"] > 0 for event in steps)
        return
    expected = [event for event in plain.events() if event["kind"] == "step"]
    assert [event["lr"] for event in steps] == [event["lr"] for event in expected]
    assert [event["loss"] for event in steps] == pytest.approx([event["loss"] for event in expected], abs=1e-6)
