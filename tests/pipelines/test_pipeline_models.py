"""The pipeline of the examples on a small table: from CSV to a gated model in use, and what runs again after a change."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelines_here import Here, script

from flatout.base.tree import to_text
from flatout.packaging.package import open_package
from flatout.pipelines.stages.lineage import lineage_beside, lineage_doc

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
HEADER = (
    '"age";"job";"marital";"education";"default";"housing";"loan";"contact";"month";"day_of_week";"duration";"campaign";"pdays";'
    '"previous";"poutcome";"emp.var.rate";"cons.price.idx";"cons.conf.idx";"euribor3m";"nr.employed";"y"'
)


def calls(rows: int) -> bytes:
    drawn = np.random.default_rng(0)
    lines = [HEADER]
    for age, rate, job in zip(
        drawn.integers(18, 90, rows), drawn.uniform(0.6, 5, rows), drawn.integers(0, 3, rows), strict=True
    ):
        label = "yes" if age / 20 - rate + drawn.normal(0, 0.5) > 0 else "no"
        words = f'"{("admin.", "student", "retired")[job]}";"single";"basic.4y";"no";"no";"no";"cellular";"may";"mon"'
        lines.append(f'{age};{words};{age * 3};{1 + age % 9};999;0;"nonexistent";1.1;93.9;-36.4;{rate:.3f};5191;"{label}"')
    return gzip.compress("\n".join([*lines, ""]).encode(), 1)


def test_from_a_csv_file_to_a_gated_model_in_use(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLES / "scripts", here.folder / "scripts")
    data = here.folder / "data" / "bank-marketing" / "bank-additional-full.csv.gz"
    data.parent.mkdir(parents=True)
    data.write_bytes(calls(2500))
    recipe = (EXAMPLES / "bank.yaml").read_text()
    here.write(
        "bank.yaml",
        recipe.replace("8 epochs", "3 epochs").replace("batch: 512", "batch: 32") + "settings: {device: cpu, threads: 1}\n",
    )
    here.write("pipeline.yaml", (EXAMPLES / "pipeline.yaml").read_text().replace("margin: 1", "margin: 1\n    slower: any"))
    monkeypatch.setenv("FLATOUT_CACHE", str(here.cache))

    assert set(here.did().values()) == {"ran"}, here.notes()
    assert "there is no old model yet: judged by its floor alone" in here.notes()
    in_use = here.folder / "production" / "current"
    assert open_package(in_use).card["objective"] == "binary"
    assert set(here.did().values()) == {"unchanged"}, "a model that was deployed is not compared with itself"

    found = lineage_beside(in_use)
    assert found is not None
    assert [one["stage"] for one in found["stages"]] == ["production", "check", "package", "model", "parts", "calls"]
    assert "PASS" in to_text(lineage_doc(found)) and lineage_beside(here.folder / "built" / "package") is not None

    here.write("bank.yaml", "# a comment\n" + (here.folder / "bank.yaml").read_text())
    assert set(here.did().values()) == {"unchanged"}
    gate = (here.folder / "pipeline.yaml").read_text()
    here.write("pipeline.yaml", gate.replace("floor: {auc: 0.7}", "floor: {auc: 0.9999}"))
    outcome = here.run()
    assert {name: one.status for name, one in outcome.stages.items() if one.status != "unchanged"} == {
        "check": "ran", "production": "not run",
    }  # fmt: skip
    assert outcome.exit_code in (1, 3) and outcome.stages["check"].verdict in ("fail", "no verdict")
    assert here.run().exit_code == outcome.exit_code and not here.notes().startswith("check: flatout"), "the verdict is kept"
    told = json.loads((here.folder / "built" / "check" / "gate.json").read_text())
    assert told["verdict"] == outcome.stages["check"].verdict and (here.folder / "built/check/gate.md").exists()


def test_the_winner_of_a_search_is_trained_and_made_smaller(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_CACHE", str(here.cache))
    drawn = np.random.default_rng(0).uniform(size=(600, 2))
    rows = [f"{a:.4f},{b:.4f},{'yes' if a > b else 'no'}" for a, b in drawn]
    here.write("rows.csv", "\n".join(["a,b,y", *rows, ""]))
    recipe = {
        "data": {"table": "rows.csv", "label": "y", "holdout": 0.2}, "model": {"mlp": {"hidden": [32]}}, "batch": 32,
        "lr": 1e-2, "budget": "2 epochs", "settings": {"device": "cpu", "threads": 1},
    }  # fmt: skip
    stages: dict[str, Any] = {
        "search": {"tune": recipe, "search": {"lr": [0.01, 0.02]}, "trials": 2},
        "model": {"train": "search", "planning": "off"},
        "small": {"shrink": "model", "within": "10 s", "margin": 20},
    }
    here.stages(**stages)
    would = here.would()
    assert would["model"].forecast.words.endswith("its recipe is made by a search")
    assert set(here.did().values()) == {"ran"}, here.notes()
    best = (here.folder / "built" / "search" / "best.yaml").read_text()
    assert "lr: 0.0" in best and open_package(here.folder / "built" / "small").card["objective"] == "classify"
    assert set(here.did().values()) == {"unchanged"}

    stages["small"]["margin"] = 30
    here.stages(**stages)
    would = here.would()
    assert {name for name, one in would.items() if one.why} == {"small"} and would["small"].forecast.seconds is not None


def test_a_training_that_never_ran_is_estimated_from_its_steps(here: Here) -> None:
    def training(table: str, budget: str = "2 epochs") -> dict[str, Any]:
        data = {"table": table, "label": "y", "holdout": 0.2}
        return {
            "train": {"data": data, "model": "mlp", "batch": 8, "lr": 1e-2, "budget": budget, "settings": {"device": "cpu"}}
        }

    here.write("rows.csv", "a,y\n" + "0.5,yes\n0.1,no\n" * 50)
    here.stages(
        made=script("python twice.py rows.csv other.csv", "other.csv"), known=training("rows.csv"), later=training("other.csv"),
        timed=training("rows.csv", "10 min"), wrong=training("a.txt"),
    )  # fmt: skip
    forecasts = {name: one.forecast for name, one in here.would().items()}
    assert forecasts["known"].words.startswith("estimate: 20 steps of") and 0 < (forecasts["known"].seconds or 0) < 600
    assert forecasts["timed"].seconds == 600
    assert forecasts["later"].seconds is None and "its data is made by made" in forecasts["later"].words
    assert forecasts["wrong"].seconds is None and "no estimate" in forecasts["wrong"].words
    assert not (here.folder / "built").exists(), "nothing ran"
