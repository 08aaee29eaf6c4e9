"""examples/production in a short form: a bad version and drift with a real server and real requests, and the manifests."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).parent.parent / "serving"))

from servers import RunningServer

import flatout as fo
from flatout.cli.main import app
from flatout.recipe.load import read_recipe

HERE = Path(__file__).parent.parent.parent / "examples" / "production"


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    sys.path.insert(0, str(HERE))
    import production
    import trips

    yield production, trips
    sys.path.remove(str(HERE))
    for name in ("production", "trips"):
        del sys.modules[name]


def made_up(fares: float = 1.0, swapped: bool = False) -> pa.Table:
    """Trips like the real ones as far as tips go."""
    drawn, n = np.random.default_rng(0), 4000
    by_card, distance = drawn.random(n) < 0.75, drawn.lognormal(0.8, 0.7, n)
    return pa.table({
        "hour": drawn.integers(0, 24, n).astype(float),
        "passengers": pa.array(drawn.integers(1, 5, n).astype(float), mask=drawn.random(n) < 0.02),
        "distance": distance,
        "fare": fares * (3 + 4 * distance),
        "tolls": np.where(drawn.random(n) < 0.05, 6.55, 0.0),
        "payment": np.where(by_card != swapped, "card", "cash"),
        "tip": np.where(by_card & (drawn.random(n) < 0.96), "yes", "no"),
    })  # fmt: skip


@pytest.fixture
def folder(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the packages v1 and v3, by the example's recipe."""
    from flatout.packaging import export as exporting
    from flatout.packaging import package

    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(package, "SIZES", (1,))
    monkeypatch.setattr(exporting, "_write_onnx", lambda *given: None)
    monkeypatch.chdir(tmp_path)
    for name in example[0].FILES:
        shutil.copy(HERE / name, tmp_path)
    for name, table in (("v1", made_up()), ("v3", made_up(swapped=True))):
        parquet.write_table(table, "trips.parquet")
        recipe = read_recipe(tmp_path / "tips.yaml", [f"name={name}", "budget=20 epochs"], {"device": "cpu"})
        exporting.export(fo.run(recipe, runs=tmp_path / "runs", planning="off"), tmp_path / name)
    return tmp_path


def test_a_bad_version_is_rolled_back_and_drift_is_found(
    example: Any, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    production, _ = example
    with RunningServer("tips=v1", "--canary", "v3", *production.CANARY, "--drift", "1 s", cwd=folder) as server:
        url = f"http://127.0.0.1:{server.port}"
        production.judged(url, made_up(), "rolled back")
        assert production.moved(url, made_up(), 2) == "no alarm in 2 periods"
        assert "fare by" in production.moved(url, made_up(fares=2.0), 20)
        assert "canary of tips: rolled back after" in server.said and "drift of tips: served rows are not" in server.said
    assert ", 0 of them failed" in capsys.readouterr().out

    (folder / "load.json").write_text(json.dumps({"goal": {"share": 0.99, "limit_ms": 100.0}, "highest_rate": 800.0}))
    shutil.copytree(folder / "v1", folder / "v2")
    monkeypatch.setattr(production, "flatout", lambda at, *words: app(list(words), standalone_mode=False))
    production.manifests(folder)
    checked = [line for line in capsys.readouterr().out.splitlines() if "is valid in Kubernetes" in line]
    assert {line.split()[1] for line in checked} == {
        "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "CronJob"
    }  # fmt: skip


def test_the_trips_of_both_years_have_the_same_columns(example: Any, shared_data: Callable[[str], Path]) -> None:
    _, trips = example
    tables = [trips.of_2022(shared_data("nyc-taxi"), 11), trips.of_2019(shared_data("nyc-taxi"))]
    assert tables[0].schema.names == tables[1].schema.names == [*trips.INPUTS, "tip"]
    assert tables[0].schema.types == tables[1].schema.types
    for table in tables:
        assert set(table["payment"].to_pylist()) == {"card", "cash", None} and set(table["tip"].to_pylist()) == {"yes", "no"}
        tips = dict(
            zip(*np.unique([f"{one['payment']} {one['tip']}" for one in table.to_pylist()], return_counts=True), strict=True)
        )
        assert tips["card yes"] > 5 * tips["card no"] and tips["cash no"] > 100 * tips.get("cash yes", 0)


def test_without_the_trips_it_says_where_they_are_from(tmp_path: Path) -> None:
    import subprocess

    done = subprocess.run([sys.executable, HERE / "production.py", tmp_path / "nothing"], capture_output=True, text=True)
    assert done.returncode == 1 and "yellow_tripdata_2022-01-10.snappy.parquet" in done.stderr
