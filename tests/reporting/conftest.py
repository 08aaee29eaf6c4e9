"""A small run that was really trained, and copies of it to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from known_machine import known_cache

from flatout.base.sealed import sealed
from flatout.recipe.load import recipe_from
from flatout.runs import train
from flatout.store.run_folder import RunFolder

RECIPE: dict[str, Any] = {"data": "digits", "model": "mlp", "batch": 64, "lr": 3e-3, "evaluate": "10 steps"}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs with digits-mlp-1, of 40 steps with a log point each."""
    runs = tmp_path_factory.mktemp("trained") / "runs"
    asked = {**RECIPE, "budget": "40 steps", "settings": {"log_every": 1, "threads": 1}}
    train.run(recipe_from(asked, runs.parent), runs=runs, cache=known_cache(), planning="off")
    return runs


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def run(runs: Path) -> RunFolder:
    return RunFolder(next(path for path in sorted(runs.iterdir()) if (path / "run.json").exists()))


@pytest.fixture
def log() -> Callable[..., None]:
    """Appends events to the log of a run, as the engine does."""

    def append(folder: RunFolder, *events: dict[str, Any]) -> None:
        with folder.events_path.open("ab") as lines:
            lines.writelines(sealed(event) + b"\n" for event in events)

    return append
