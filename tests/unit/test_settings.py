"""Settings: what may be written for each, pins that are typed once, and the files that own them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flatout as fo
from flatout.base.errors import RecipeError, UsageError
from flatout.data.cache.compression import COMPRESSIONS
from flatout.data.cache.filling import TIERS
from flatout.engine.setting_values import SettingScope
from flatout.engine.settings import SETTING_NAMES, Settings, parse_pins, settings_of
from flatout.plan.knobs.all import AFTER, BEFORE, KNOBS, OWNERS, PRICED, conflicts, off_value, off_when_shared
from flatout.recipe.load import recipe_from

ASKED: dict[str, Any] = {"data": "digits", "model": "mlp", "batch": 32, "lr": 1e-3, "budget": "2 steps"}


@pytest.mark.parametrize(
    ("name", "written", "meant"),
    [
        ("precision", " BF16", "bf16"),
        ("compile", True, "on"),
        ("compile", "no", "off"),
        ("graph", "yes", True),
        ("deterministic", 0, False),
        ("micro_batch", "1e3", 1000),
        ("log_every", 4096.0, 4096),
        ("grace", "2 min", "2 min"),
        ("disk_budget", "auto", "auto"),
        ("disk_budget", "50 GB", "50 GB"),
        ("checkpoint_every", "end", "end"),
        ("checkpoint_every", "500 steps", "500 steps"),
        ("device", "cuda:1", "cuda:1"),
        ("mesh", "data=2", "data=2"),
    ],
)
def test_what_is_written_is_typed(name: str, written: Any, meant: Any) -> None:
    assert parse_pins({name: written}) == ({name: meant}, [])


@pytest.mark.parametrize(
    ("name", "written", "why"),
    [
        ("precision", "fp64", "expected one of fp32, tf32, bf16, fp16, fp8, got 'fp64'"),
        ("graph", "maybe", "expected on or off, got 'maybe'"),
        ("micro_batch", "a few", "expected a whole number, got 'a few'"),
        ("micro_batch", True, "expected a whole number, got True"),
        ("micro_batch", -1, "expected 0 or more, got -1"),
        ("keep_checkpoints", 0, "expected 1 or more, got 0"),
        ("prefetch", 5000, "expected 4,096 or less, got 5000"),
        ("grace", "soon", "expected a time, such as 30 s, got 'soon'"),
        ("disk_budget", 50, "expected auto or a size, such as 50 GB, got 50"),
        ("checkpoint_every", "2 epochs", "expected auto, end, a time or steps, such as 2 min or 500 steps, got '2 epochs'"),
        ("residuel", "float32", "no such setting; did you mean 'residual'?"),
    ],
)
def test_what_was_expected_is_told(name: str, written: Any, why: str) -> None:
    assert parse_pins({name: written}) == ({}, [f"settings.{name}: {why}"])


def test_values_are_those_of_the_parts_they_choose_from() -> None:
    for tier in TIERS:
        assert parse_pins({"tier": tier}) == ({"tier": tier}, [])
    assert parse_pins({"tier": "?"})[1] == [f"settings.tier: expected one of {', '.join(TIERS)}, got '?'"]
    for compression in ("auto", *COMPRESSIONS):
        assert parse_pins({"cache_compression": compression}) == ({"cache_compression": compression}, [])


# ---- pins, typed once ----


def test_a_recipe_has_its_pins_typed_and_its_settings_as_written() -> None:
    written = {"graph": "off", "micro_batch": "1e1", "compile": False}
    recipe = fo.Recipe(**ASKED, settings=written)
    assert recipe.settings == written == recipe.written()["settings"]
    assert recipe.pins == {"graph": False, "micro_batch": 10, "compile": "off"}
    assert fo.Recipe(**ASKED).pins == {}


def test_a_pin_that_is_added_later_counts_and_is_checked() -> None:
    recipe = fo.Recipe(**ASKED, settings={"graph": "off"})
    recipe.settings.update({"log_every": "7"})
    assert recipe.pins == {"graph": False, "log_every": 7}
    recipe.settings["tiers"] = "resident"
    with pytest.raises(RecipeError, match="tiers: no such setting; did you mean 'tier'"):
        _ = recipe.pins


def test_all_mistakes_in_pins_come_with_the_others() -> None:
    with pytest.raises(RecipeError) as error:
        fo.Recipe(**ASKED | {"batch": 0}, settings={"graph": "maybe", "tiers": "resident"}, knobs=["nowhere:Mine"])
    problems = str(error.value)
    assert all(place in problems for place in ("batch:", "settings.graph:", "settings.tiers:", "knobs:"))


def test_a_share_has_the_pins_it_is_given() -> None:
    share = fo.Recipe(**ASKED, settings={"graph": "off", "tier": "pinned"}).with_share(16, {"tier": "pinned", "mesh": "data=2"})
    assert share.pins == share.settings == share.given[1] == {"tier": "pinned", "mesh": "data=2"}


def test_pins_of_a_stored_recipe_need_not_be_known_any_more() -> None:
    stored = recipe_from({**ASKED, "settings": {"graph": "off", "mine": "3", "tier": "gone"}}, Path(), stored=True)
    assert stored.pins == {"graph": False, "mine": 3}


# ---- files that own a setting ----


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.name)
def test_off_is_a_value_that_can_be_written_and_has_no_conflict(owner: Any) -> None:
    assert off_value(owner.name) == owner.off
    assert parse_pins({owner.name: owner.off}) == ({owner.name: owner.off}, [])
    assert conflicts(Settings(**{owner.name: owner.off})) == []


def test_what_can_not_be_off_says_so() -> None:
    assert off_value("reshard") is False  # a switch that no file decides
    with pytest.raises(UsageError, match="--off grace: this setting can't be off; pin a value with --set grace="):
        off_value("grace")


def test_no_file_is_half_a_knob() -> None:
    """One with candidates is tried or has a price; one that decides comes up before, among or after those that are tried."""
    tried = {one.name for one in (*KNOBS, *PRICED)}
    assert {owner.name for owner in OWNERS if "candidates" in dir(owner)} == tried
    decided = [one.name for one in (*BEFORE, *KNOBS, *AFTER)]
    assert decided == [owner.name for owner in OWNERS if "default" in dir(owner)]
    assert decided == [name for name in SETTING_NAMES if name in decided]


@pytest.mark.parametrize(
    ("processes", "mesh", "off"),
    [
        (1, "", {}),
        (2, "", {"graph": False}),
        (2, "shard=2", {"graph": False}),
        (2, "tensor=2", {"graph": False, "loss_head": "plain", "vocabulary_padding": 0}),
        (2, "pipeline=2", {"graph": False, "compile": "off", "loss_head": "plain", "vocabulary_padding": 0}),
    ],
)
def test_what_processes_can_not_share_is_off(processes: int, mesh: str, off: dict[str, Any]) -> None:
    assert off_when_shared(processes, mesh) == off


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"graph": True}, "graph=on needs a CUDA device"),
        ({"graph": True, "device": "cuda", "compile": "reduce-overhead"}, "compile=reduce-overhead makes its own CUDA graphs"),
        ({"precision": "fp16", "fused_optimizer": False}, "fp16 needs a fused optimizer"),
        ({"precision": "fp16", "optimizer_offload": True, "device": "cuda"}, "not optimizer_offload=on: --set precision=bf16"),
        ({"precision": "tf32"}, "tf32 needs a GPU"),
        ({"precision": "fp8"}, "fp8 needs a CUDA device; the run is on cpu"),
        ({"attention": "cudnn"}, "attention=cudnn needs a GPU"),
        ({"attention": "flex"}, "attention=flex is fast only if compiled"),
        ({"attention": "flex", "compile": "on", "mesh": "context=2"}, "sequences split by context"),
        ({"residual": "autocast"}, "--off residual"),
        ({"allocator": "expandable"}, "--off allocator"),
        ({"activation_offload": True}, "activation_offload=on is for accelerators"),
        ({"activation_offload": True, "device": "cuda", "compile": "reduce-overhead"}, "--set compile=on"),
        ({"optimizer_offload": True, "device": "cuda", "graph": True}, "graph=on: --off graph"),
        ({"optimizer_offload": True, "device": "cuda", "mesh": "shard=2"}, "split by shard: --set optimizer_offload=off"),
        ({"precision": "fp16", "device": "cuda", "mesh": "shard=2"}, "weights split by shard: --set precision=bf16"),
        ({"graph": True, "device": "cuda", "mesh": "pipeline=2"}, "graph=on does not work with weights split by pipeline"),
        ({"loss_head": "fused", "mesh": "pipeline=2,tensor=2"}, "loss_head=fused does not work with weights split by tensor"),
        ({"vocabulary_padding": 64, "mesh": "tensor=2"}, "split by tensor: --set vocabulary_padding=0"),
        ({"compile": "on", "mesh": "pipeline=2"}, "compile=on does not work with weights split by pipeline: --set compile=off"),
    ],
)
def test_conflicts_are_told_with_the_way_out(settings: dict[str, Any], why: str) -> None:
    (problem,) = conflicts(Settings(**settings))
    assert why in problem


@pytest.mark.parametrize("mesh", ["data=2", "context=2", ""])
def test_weights_that_are_whole_refuse_nothing(mesh: str) -> None:
    assert conflicts(Settings(device="cuda", graph=True, compile="on", loss_head="fused", precision="fp16", mesh=mesh)) == []


def test_settings_that_are_not_of_a_step_or_not_of_a_run() -> None:
    """A recorded measurement and a run's identity depend on the others: one more here makes older ones count for less."""
    assert settings_of(SettingScope.AROUND_THE_STEP) == {
        "tier", "reader_threads", "prefetch", "disk_budget", "cache_compression", "log_every", "evaluation_batch",
        "checkpoint_every", "failure_every", "keep_checkpoints", "nonfinite_limit", "grace",
    }  # fmt: skip
    assert settings_of(SettingScope.PROCESSES) == {"threads", "mesh", "pipeline", "bucket_mb", "reshard"}
