"""Layouts that are tried out by processes of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from test_together import went_well
from worlds import together

import flatout as fo
from flatout.plan.layouts.fitting import LayoutChoice
from flatout.recipe.build import build_job
from flatout.recipe.load import read_recipe
from flatout.runs.layout_search import LayoutSearch, LayoutTimes
from flatout.runs.layout_trials import why_untried

RECIPE = """
data: digits
model: {mlp: {hidden: [15, 15]}}
batch: 32
lr: 0.001
budget: 100000 steps
"""
OPTIONS = [LayoutChoice(mesh, "estimated", step_s=60.0) for mesh in ("data=2", "shard=2")]


def chosen(steps_s: dict[str, list[float]], failed: dict[str, str]) -> LayoutChoice:
    def trial(option: LayoutChoice) -> LayoutTimes:
        return LayoutTimes(tuple(steps_s.get(option.mesh, ())), failed.get(option.mesh, ""))

    return LayoutSearch(OPTIONS, trial, lambda line: None).chosen()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path


def test_the_fastest_is_taken_and_one_that_fails_is_told(path: Path) -> None:
    runs = path.parent / "runs"
    processes = together(2, "trying_layouts.py", str(path), str(runs), ["tensor=2", "data=2", "shard=2"])
    went_well(processes)
    assert processes[0].out == processes[1].out  # all take the same
    mesh, source, why = json.loads(processes[0].out)
    assert mesh in ("data=2", "shard=2") and source == "measured"
    other = "shard=2" if mesh == "data=2" else "data=2"
    assert why.startswith("measured: ") and f", {other} " in why
    assert "; tensor=2 failed: rank 0: " in why and "does not divide" in why
    assert not list(runs.iterdir())  # nothing is left of them


def test_where_nothing_could_be_measured_the_estimate_stands() -> None:
    found = chosen({}, {"data=2": "rank 1: out of memory", "shard=2": "rank 0: it had not ended after 3 min"})
    assert (found.mesh, found.source) == ("data=2", "default")
    assert found.why.startswith("estimated; data=2 failed: rank 1: out of memory; shard=2 failed: ")
    alone = chosen({"shard=2": [0.25] * 8}, {"data=2": "rank 1: out of memory"})
    assert (alone.mesh, alone.why) == ("shard=2", "measured: 250 ms a step; data=2 failed: rank 1: out of memory")


def test_another_is_taken_where_it_is_faster_by_more_than_the_noise() -> None:
    slow, fast, noisy = [0.5, 0.51, 0.49, 0.5, 0.52, 0.5], [0.4, 0.41, 0.39, 0.4, 0.42, 0.4], [0.3, 0.7, 0.49, 0.5, 0.9, 0.2]
    assert chosen({"data=2": slow, "shard=2": fast}, {}).why == "measured: 400 ms a step, data=2 500 ms"
    assert chosen({"data=2": slow, "shard=2": noisy}, {}).mesh == "data=2"
    assert chosen({"data=2": fast, "shard=2": slow}, {}).mesh == "data=2"


def test_what_is_not_tried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = read_recipe(path)
    job = build_job(recipe, None)
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    assert "launcher" in str(why_untried(recipe, job, OPTIONS, 300))
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert why_untried(recipe, job, OPTIONS, 300) is None
    assert why_untried(recipe, job, OPTIONS[:1], 300) == "there is only one"
    short = read_recipe(path, ["budget=10 steps"])
    assert why_untried(short, build_job(short, None), OPTIONS, 300) == "the run is too short for trials"
    assert why_untried(recipe, job, OPTIONS, 0) == "the run is too short for trials"  # planning is off
    made = fo.Recipe(data="digits", model="mlp", batch=32, lr=1e-3, budget="100000 steps")
    assert "Python objects" in str(why_untried(made, build_job(made, None), OPTIONS, 300))
