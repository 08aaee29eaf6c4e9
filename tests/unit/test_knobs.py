"""Every built-in knob passes the conformance suite, and so does a user's knob."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout as fo
from flatout.base.errors import RecipeError, UsageError
from flatout.base.tree import to_data
from flatout.cli.training import read_asked
from flatout.engine.settings import Settings, parse_pins, value_of
from flatout.plan import make as planned
from flatout.plan.knobs import (
    activation_checkpointing,
    attention,
    channels_last,
    fused_optimizer,
    graph,
    micro_batch,
    precision,
)
from flatout.plan.knobs.knob import Candidate, Decisions
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation
from flatout.recipe.build import build_job, identity
from flatout.testing.knobs import KnobConformance, made_up


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "ceilings_of", lambda device, cache, job: made_up())


class TanhGelu:
    """GELU by its tanh approximation: other arithmetic, nearly the same numbers."""

    name, off, lossy, risky = "tanh_gelu", False, True, False
    meets: tuple[str, ...] = ()

    def default(self, s: Situation, values: Mapping[str, Any]) -> Decisions:
        yield Choice(self.name, False, "exact by default")

    def candidates(self, s: Situation, now: Settings) -> Iterator[Candidate]:
        if not value_of(now, self.name) and any(isinstance(module, nn.GELU) for module in s.job.model.modules()):
            yield Candidate(True, "a cheaper formula", 1.1)

    def turn(self, model: nn.Module, value: Any) -> None:
        for module in model.modules():
            if isinstance(module, nn.GELU):
                module.approximate = "tanh" if value else "none"


class Doubling(TanhGelu):
    name = "doubling"

    def turn(self, model: nn.Module, value: Any) -> None:
        if value:
            next(model.parameters()).register_hook(lambda gradient: 2 * gradient)


class TestAttention(KnobConformance):
    knob = attention


class TestChannelsLast(KnobConformance):
    knob = channels_last


class TestCheckpointing(KnobConformance):
    knob = activation_checkpointing


class TestFusedOptimizer(KnobConformance):
    knob = fused_optimizer


class TestGraph(KnobConformance):
    knob = graph


class TestMicroBatch(KnobConformance):
    knob = micro_batch


class TestPrecision(KnobConformance):
    knob = precision


class TestTanhGelu(KnobConformance):
    knob = TanhGelu()


def recipe(*knobs: Any, **given: Any) -> fo.Recipe:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))

    asked: dict[str, Any] = {"data": "digits", "model": network, "batch": 32, "lr": 1e-2, "budget": "20 steps", **given}
    return fo.Recipe(**asked, knobs=knobs)


def test_a_recipe_can_add_a_knob_and_pin_it(tmp_path: Path) -> None:
    run = fo.run(recipe(TanhGelu(), settings={"tanh_gelu": True, "device": "cpu"}), runs=tmp_path, cache=None)
    assert run.plan.settings.own == {"tanh_gelu": True}
    plain = fo.run(recipe(TanhGelu(), settings={"device": "cpu"}), runs=tmp_path, cache=None)
    assert plain.plan.settings.own == {"tanh_gelu": False}
    assert run.result["metrics"]["train_loss"] != plain.result["metrics"]["train_loss"]
    assert "tanh gelu" in run.explain()


def test_a_knob_whose_code_has_changed_makes_another_run() -> None:
    class Tripling(Doubling):
        def turn(self, model: nn.Module, value: Any) -> None:
            if value:
                next(model.parameters()).register_hook(lambda gradient: 3 * gradient)

    asked = [recipe(knob, settings={"device": "cpu"}) for knob in (Doubling(), Doubling(), Tripling())]
    one, same, other = (identity(each, build_job(each)) for each in asked)
    assert one == same != other


@pytest.mark.parametrize(
    ("written", "meant"), [("on", True), ("off", False), (True, True), ("3", 3), ("0.5", 0.5), ("fast", "fast")]
)
def test_a_pin_from_the_command_line_has_the_right_type(written: Any, meant: Any) -> None:
    assert parse_pins({"mine": written}, ["mine"]) == ({"mine": meant}, [])


def test_off_on_the_command_line_accepts_knobs_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    written = tmp_path / "mine.yaml"
    written.write_text("data: digits\nmodel: mlp\nbatch: 32\nlr: 1e-3\nbudget: 2 steps\nknobs: ['test_knobs:TanhGelu']\n")
    assert read_asked(written, [], [], ["tanh_gelu"]).settings == {"tanh_gelu": False}
    with pytest.raises(UsageError, match="--off tanh_gellu: no such setting"):
        read_asked(written, [], [], ["tanh_gellu"])


def test_an_incomplete_knob_is_rejected_with_all_missing_parts() -> None:
    class Half:
        name = "half"

    with pytest.raises(RecipeError, match="has no off, lossy, risky, meets, default, candidates, turn"):
        recipe(Half())


def test_a_knob_can_not_take_the_name_of_a_setting() -> None:
    class Taken(TanhGelu):
        name = "precision"

    with pytest.raises(RecipeError, match="precision is already a setting"):
        recipe(Taken())


def test_a_misspelt_pin_is_an_error() -> None:
    with pytest.raises(RecipeError, match="tanh_gellu"):
        recipe(TanhGelu(), settings={"tanh_gellu": True})


def test_a_bug_in_a_knob_of_the_user_is_caught(tmp_path: Path) -> None:
    asked = recipe(Doubling(), budget="2000 steps", settings={"device": "cpu"})
    doc = fo.explain(asked, cache=tmp_path, analyze=True, planning="10 min")
    (why,) = [one["why"] for one in to_data(doc)["rejected"] if one["name"] == "doubling"]
    assert "not the same" in why
