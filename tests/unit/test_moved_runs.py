"""A run moves to a kind of processor that rounds differently: it is recognised, and goes on with its own fitted numbers."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import flatout as fo
from flatout.base.errors import DataError
from flatout.data.data import Data
from flatout.data.kept import remember
from flatout.data.normalize import Normalize
from flatout.data.own_fit import differs_by_rounding, with_fit_of
from flatout.packaging.export import _job_and_samples as job_and_samples
from flatout.recipe.load import read_recipe

Move = Callable[[int], None]


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Move:
    """From now on, fitted means and deviations come out this many units in the last place higher."""
    fit = Normalize.fit.__func__  # type: ignore[attr-defined]

    def moved(places: int) -> None:
        def rounded(source: Any, rows_at_once: int = 4096) -> Normalize:
            found: Normalize = fit(Normalize, source, rows_at_once)
            return replace(found, mean=nudged(found.mean, places), std=nudged(found.std, places))

        monkeypatch.setattr(Normalize, "fit", rounded)

    return moved


def nudged(values: tuple[float, ...], places: int) -> tuple[float, ...]:
    array = np.array(values)
    for _ in range(places):
        array = np.nextafter(array, np.inf)
    return tuple(array.tolist())


def rows(shift: float = 0.0) -> Any:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(96, 3)).astype("float32")
    x[0, 0] += shift
    return {"x": x, "y": (x[:, 1] > 0).astype("int64")}


@pytest.fixture
def recipe(desk: Path) -> Callable[[], fo.Recipe]:
    np.savez("rows.npz", **rows())
    Path("rows.yaml").write_text(
        "data: {arrays: rows.npz, normalize: auto, holdout: 0.25}\nmodel: {mlp: {hidden: [4]}}\nobjective: classify\n"
        "batch: 8\nlr: 1e-2\nbudget: 4 epochs\nevaluate: 1 epoch\n"
    )
    return lambda: read_recipe(Path("rows.yaml"), ())


def train(recipe: fo.Recipe, *observers: Any, **more: Any) -> Any:
    return fo.run(recipe, cache="cache", planning="off", observers=observers, **more)


def stop(event: Any) -> None:
    if event["kind"] == "step" and event["step"] >= 9:
        os.kill(os.getpid(), signal.SIGTERM)


def prepared(run: Path) -> Any:
    return json.loads((run / "data.json").read_text())["prepare"]


@pytest.mark.parametrize("places", [1, 3])
def test_it_is_evaluated_with_its_own_numbers(recipe: Callable[[], fo.Recipe], move: Move, places: int) -> None:
    run = train(recipe())
    before = fo.evaluate(run, cache="cache")
    move(places)
    again = fo.load("rows-1")
    assert again.recipe.load_data().describe()["prepare"] != prepared(run.path)
    assert fo.evaluate(again, cache="cache") == before


@pytest.mark.parametrize("with_parts", [True, False], ids=["", "of a version that stored one digest"])
def test_it_is_resumed_with_its_own_numbers(recipe: Callable[[], fo.Recipe], move: Move, with_parts: bool) -> None:
    whole = load_file(train(recipe(), runs="whole").path / "model.safetensors")
    with pytest.raises(fo.FlatoutError):
        train(recipe(), stop)
    stopped = fo.load("rows-1").folder
    if not with_parts:
        stopped.write("run.json", {name: value for name, value in stopped.about.items() if name != "parts"})
    kept = prepared(stopped.path)
    move(2)
    events: list[Any] = []
    run = train(recipe(), events.append)
    assert (run.name, run.folder.status) == ("rows-1", "finished") and "resumed" in [event["kind"] for event in events]
    now = load_file(run.path / "model.safetensors")
    assert all(np.array_equal(now[name], value) for name, value in whole.items()) and prepared(run.path) == kept
    assert train(recipe()).name == "rows-2", "it has finished: the same command starts a new run"


def test_it_is_exported_with_its_own_rows(recipe: Callable[[], fo.Recipe], move: Move) -> None:
    run = train(recipe())
    move(1)
    notes: list[str] = []
    job, samples, _ = job_and_samples(fo.load(run.name), None, notes)
    assert job.data.describe()["prepare"] == prepared(run.path) and "validation" in samples.origin and not notes


@pytest.mark.parametrize("shift", [0.01, 1e-6], ids=["in one value", "in the last bits of one value"])
def test_other_data_is_refused(recipe: Callable[[], fo.Recipe], move: Move, shift: float) -> None:
    train(recipe())
    with pytest.raises(fo.FlatoutError):
        train(recipe(), stop, fresh=True)
    move(1)
    np.savez("rows.npz", **rows(shift))
    with pytest.raises(DataError):
        fo.evaluate(fo.load("rows-1"), cache="cache")
    events: list[Any] = []
    assert train(recipe(), events.append).name == "rows-3"
    assert [event["differs"] for event in events if event["kind"] == "not_resumed"] == [("data",)]


def test_a_scale_of_the_target(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(64, 2)).astype("float32")
    here = fo.data.arrays(x, x[:, 0], normalize="auto")
    here, there = (replace(here, target_scale=scale) for scale in ((1e-17, 0.7), (3e-17, math.nextafter(0.7, 1))))
    adopted = with_fit_of(here, remember(there))
    assert adopted.target_scale == there.target_scale and adopted.fingerprint() == there.fingerprint()
    assert with_fit_of(here, remember(here)) is here
    other = replace(here, target_scale=(0.0, 0.7001))
    assert with_fit_of(here, remember(other)) is here


def test_a_step_of_the_user_is_compared_as_before() -> None:
    class Own:
        def describe(self, schema: Any) -> Any:
            return dict(schema)

        def __call__(self, batch: Any, keys: Any) -> Any:
            return batch

        def written(self) -> Any:
            return "own"

    data: Data = fo.data.arrays(np.zeros((4, 2), "float32"), np.arange(4.0), normalize=Own())
    scaled = replace(data, target_scale=(0.0, 1.0))
    theirs = replace(data, target_scale=(0.0, math.nextafter(1.0, 2)))
    assert with_fit_of(scaled, remember(theirs)) is scaled


@pytest.mark.parametrize(
    ("mine", "theirs", "close"),
    [
        ({"mean": [1e-18, 5.0], "std": [2.0, 3.0]}, {"mean": [-1e-17, 5.0], "std": [2.0, 3.0]}, True),
        ({"mean": [0.0, 5.0], "std": [2.0, 3.0]}, {"mean": [1e-6, 5.0], "std": [2.0, 3.0]}, False),
        ({"mean": [0.0, 5.0], "std": [1e-9, 3.0]}, {"mean": [1e-12, 5.0], "std": [1e-9, 3.0]}, False),
        ({"std": [2.0]}, {"std": [2.0, 2.0]}, False),
        ({"names": ["a"]}, {"names": ["b"]}, False),
        ({"fill": 5.0, "mean": 1e-18}, {"fill": 5.0 + 1e-13, "mean": 0.0}, True),
        ({"std": [2.0]}, {"std": None}, False),
    ],
)
def test_what_counts_as_rounding(mine: Any, theirs: Any, close: bool) -> None:
    assert differs_by_rounding(mine, theirs) is close
