"""Runs, recipes and plans of earlier versions: today's code shows them, evaluates, predicts and resumes with the same numbers.

tests/fixtures/upgrade/make.py has made the runs with the version of that date.
"""

from __future__ import annotations

import json
import platform
import shutil
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command
from safetensors.torch import load_file

import flatout as fo
from flatout.recipe.load import read_recipe

UPGRADE = Path(__file__).parent.parent / "fixtures" / "upgrade"
DATES = sorted(path.name for path in UPGRADE.iterdir() if (path / "runs.tar.xz").exists())
KINDS = sorted(path.stem for path in (UPGRADE / "data").glob("*.yaml"))
PREDICTED = {"table": "parts.csv", "chars": "words.txt", "tokens": "tokens.npy", "photos": "photos", "arrays": "shapes.npz"}

every_run = pytest.mark.parametrize(("date", "kind"), [(date, kind) for date in DATES for kind in KINDS])


@cache
def recorded(date: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((UPGRADE / date / "recorded.json").read_text())
    return found


def assert_same(date: str, now: Any, then: Any, atol: float = 1e-5) -> None:
    """To the bit on the kind of machine that recorded them: others round differently."""
    if (recorded(date)["machine"], recorded(date)["torch"]) == (platform.machine(), torch.__version__):
        assert np.array_equal(now, then)
    elif np.asarray(then).dtype.kind == "f":
        np.testing.assert_allclose(now, then, rtol=1e-4, atol=atol)
    else:
        assert np.array_equal(now, then)


def with_additions(plan: dict[str, Any]) -> dict[str, Any]:
    """What later versions have added."""
    choices = [{"step_j": None, **choice} for choice in plan["choices"]]
    settings = {"threads": 0, "power_limit": 0, **plan["settings"]}
    prediction = {"idle_w": None, **plan["prediction"]}
    return {"frozen": "", **plan, "choices": choices, "settings": settings, "prediction": prediction}


@pytest.fixture
def unpack(desk: Path) -> Any:
    """Puts the recipes and data of all kinds, and the runs of one kind, into the working directory."""

    def unpacked(date: str, kind: str) -> None:
        shutil.copytree(UPGRADE / "data", desk, dirs_exist_ok=True)
        with tarfile.open(UPGRADE / date / "runs.tar.xz") as archive:
            wanted = [one for one in archive.getmembers() if one.name.startswith(f"runs/{kind}-")]
            safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 and newer
            archive.extractall(desk, wanted, **safe)

    return unpacked


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_there_are_runs_of_two_versions() -> None:
    assert len(DATES) >= 2 and {*PREDICTED, "digits"} == {*KINDS}


@every_run
def test_it_is_shown(date: str, kind: str, unpack: Any, flatout: Command) -> None:
    unpack(date, kind)
    listed = flatout("runs").out
    assert f"{kind}-1  finished" in listed and f"{kind}-2  stopped" in listed
    shown = flatout("runs", "show", f"{kind}-1")
    assert shown.code == 0 and "batch: " in shown.out and "fp32" in shown.out
    assert flatout("runs", "compare", f"{kind}-1", f"{kind}-2").code == 0
    check = flatout("runs", "check", f"{kind}-1", "--json")
    assert list(json.loads(check.out)["damaged"]) == (
        [] if (Path("runs") / f"{kind}-1" / "manifest.jsonl").exists() else ["manifest.jsonl"]
    )


@every_run
def test_its_recipe_plan_and_events_are_read(date: str, kind: str, unpack: Any) -> None:
    unpack(date, kind)
    run = fo.load(f"{kind}-1")
    assert run.recipe.written() == read_recipe(Path(f"{kind}.yaml"), ()).written()
    then = json.loads((run.path / "plan.json").read_text())
    assert json.loads(json.dumps(run.plan.to_dict())) == with_additions(then)
    assert run.plan.settings.precision == "fp32"
    kinds = [event["kind"] for event in run.events()]
    assert kinds[0] == "planned" and kinds[-1] == "finished" and "damaged" not in kinds
    assert run.result["steps"] == recorded(date)["kinds"][kind]["steps"] and "Plan for" in run.explain()


@every_run
def test_it_evaluates_and_predicts_the_same(date: str, kind: str, unpack: Any) -> None:
    unpack(date, kind)
    run, then = fo.load(f"{kind}-1"), recorded(date)["kinds"][kind]
    metrics = fo.evaluate(run, cache="cache")
    assert metrics.keys() == then["metrics"].keys()
    assert_same(date, list(metrics.values()), list(then["metrics"].values()))
    if kind in PREDICTED:
        columns = fo.predict(run, PREDICTED[kind], cache="cache")
        assert columns.keys() == then["predictions"].keys()
        for name, column in columns.items():
            assert_same(date, column.tolist(), then["predictions"][name])
    weights = load_file(run.path / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in run.model(bare=True).state_dict().items())
    assert not run.model().training


@every_run
def test_one_that_was_stopped_is_resumed_to_the_same_weights(date: str, kind: str, unpack: Any) -> None:
    unpack(date, kind)
    events: list[Any] = []
    run = fo.run(read_recipe(Path(f"{kind}.yaml"), ()), cache="cache", planning="off", observers=[events.append])
    assert run.name == f"{kind}-2" and run.folder.status == "finished"
    assert [event["kind"] for event in events if event["kind"] in ("resumed", "not_resumed")] == ["resumed"]
    now, then = load_file(run.path / "model.safetensors"), load_file(Path("runs") / f"{kind}-1" / "model.safetensors")
    assert now.keys() == then.keys()
    for name, value in now.items():
        assert_same(date, value.numpy(), then[name].numpy(), atol=0.02)  # elsewhere: two steps of the learning rate
    assert not run.folder.check()
