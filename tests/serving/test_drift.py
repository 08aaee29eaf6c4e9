"""Rows that are served against the training data: what is stored, when an alarm comes, and what the server says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaged_runs import reseal
from served_rows import table_requests
from servers import RunningServer

from flatout.base.errors import FlatoutError
from flatout.measure.anytime.drifting import DriftEvidence
from flatout.packaging.package import open_package
from flatout.packaging.statistics import ColumnStatistics, RowStatistics, statistics_of_rows
from flatout.pipelines.stages.due import overdue
from flatout.serving.drift.sampling import DriftSampling
from flatout.serving.drift.watch import DriftJudge, DriftOptions, DriftWatch


@pytest.fixture(scope="module")
def statistics(packaged: Callable[[str], Any]) -> RowStatistics:
    """Of 5,000 rows with a number that is missing in a tenth, a category, and an embedding."""
    return statistics_of_rows(rows(0, 5000), open_package(packaged("classes_table").path).fitted)


def rows(
    seed: int, n: int, *, moved: float = 0.0, wide: float = 0.0, missing: float = 0.1, common: float = 0.5
) -> dict[str, torch.Tensor]:
    drawn = np.random.default_rng(seed)
    number = np.where(drawn.random(n) < missing, np.nan, drawn.standard_normal(n) + moved)
    category = np.where(drawn.random(n) < common, 0, drawn.integers(1, 40, n))
    embedded = (drawn.standard_normal((n, 100)) + wide).astype(np.float32)
    made = {"number": number[:, None].astype(np.float32), "category": category[:, None], "wide": embedded}
    return {name: torch.from_numpy(column) for name, column in made.items()}


def counted(statistics: RowStatistics, given: dict[str, torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    return [column.counts(given[column.port].numpy()) for column in statistics.columns]


def test_every_row_is_counted_once_in_a_bin_that_held_its_share(statistics: RowStatistics) -> None:
    columns = {one.name: one for one in statistics.columns}
    assert {"number", "category", "wide: mean", "wide: spread", "wide: direction 1"} <= set(columns)
    assert columns["number"].shares[-1] == pytest.approx(0.1, abs=0.02)  # missing
    assert max(columns["number"].shares[:-1]) < 0.11 and len(columns["number"].cuts) == 9
    assert columns["category"].values[0] == 0 and columns["category"].shares[0] == pytest.approx(0.5, abs=0.03)
    for column, counts in zip(statistics.columns, counted(statistics, rows(1, 300)), strict=True):
        assert counts.sum() == 300 and len(counts) == len(column.shares)
        assert sum(column.shares) == pytest.approx(1)
    assert RowStatistics.from_json(json.loads(json.dumps(statistics.to_json()))) == statistics
    unseen = ColumnStatistics("c", "c", values=(7, 3), shares=(0.5, 0.5, 0.0))
    assert unseen.counts(np.array([[3], [7], [99], [-1], [7]])).tolist() == [2, 1, 2]


def test_the_package_has_the_statistics_of_its_training_rows(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    found = open_package(packaged("classes_table").path).statistics
    assert found is not None and {"age", "job", "code"} <= {one.name for one in found.columns} and found.rows > 0
    age = next(one for one in found.columns if one.name == "age")
    assert age.shares[-1] == pytest.approx(1 / 7, abs=0.05)
    photos = open_package(packaged("photos").path).statistics
    assert photos is not None and any(one.name.endswith("mean") for one in photos.columns)
    broken = packaged("classes_table").copy(tmp_path / "broken")
    for content in (b"", b"[]", b'{"rows": 1, "columns": [{}]}'):
        (tmp_path / "broken" / "statistics.json").write_bytes(content)
        reseal(tmp_path / "broken")
        with pytest.raises(FlatoutError, match=r"statistics\.json"):
            assert open_package(broken).statistics


@pytest.mark.parametrize(
    ("changed", "column"),
    [({"moved": 0.8}, "number"), ({"missing": 0.3}, "number"), ({"common": 0.25}, "category"), ({"wide": 0.1}, "wide")],
)
def test_a_shift_is_found_within_days_and_the_right_columns_are_named(
    changed: dict[str, float], column: str, statistics: RowStatistics
) -> None:
    judge = DriftJudge(statistics, 0.1)
    for day in range(40):  # an alarm comes soon also after a long time without a change
        assert judge.period(counted(statistics, rows(100 + day, 400))) == []
    for day in range(3):
        moved = judge.period(counted(statistics, rows(200 + day, 400, **changed)))
        if moved:
            break
    assert moved and all(one.startswith(column) for one in moved)
    assert judge.effects[moved[0]] > 0.1


def test_small_differences_are_no_alarm_however_many_rows_there_are(statistics: RowStatistics) -> None:
    judge = DriftJudge(statistics, 0.1)
    for day in range(4):
        assert judge.period(counted(statistics, rows(300 + day, 60_000, moved=0.08, missing=0.13, common=0.55))) == []
    again = DriftJudge(statistics, 0.1)
    again.restore(json.loads(json.dumps(judge.to_json())))
    assert again.log_e() == judge.log_e()


def test_nights_unlike_days_are_no_drift_if_periods_are_whole() -> None:
    """Rows of which the first half always and the second never are hits: the average share is that of the training."""
    alarms = 0
    for seed in range(100):
        drawn, evidence = np.random.default_rng(seed), DriftEvidence(np.array([0.4]), np.array([0.05]))
        for _ in range(30):
            shares = np.where(np.arange(80) < 40, 0.85, 0.05)  # 0.45 on average: the edge of what is allowed
            evidence.period(np.array([80]), np.array([(drawn.random(80) < shares).sum()]))
            if evidence.log_e()[0] >= np.log(10):
                alarms += 1
                break
    assert alarms <= 10
    with pytest.raises(ValueError, match="other columns"):
        DriftEvidence(np.array([0.4, 0.1]), np.array([0.1, 0.1])).restore(evidence.to_json())


def test_a_watch_goes_on_after_a_restart_and_waits_for_enough_rows(statistics: RowStatistics, tmp_path: Path) -> None:
    said: list[str] = []
    options = DriftOptions(0.0, tmp_path)

    def watch(identity: str = "one") -> DriftWatch:
        return DriftWatch("people", identity, statistics, options, said.append)

    first = watch()
    few = [one.tolist() for one in counted(statistics, rows(1, 50, moved=3.0))]
    first.heard(50, few)
    first.look()
    assert first.summary()["periods"] == 0  # 50 rows are too few for a period
    first._save()
    second, made = watch(), time.time()
    second.heard(50, few)
    second.look()
    assert second.summary()["alarms"] == 1 and "number by" in said[-1] and "drift of people" in said[-1]
    asked = "drift in drift-people.json"  # of a pipeline's stage
    assert overdue(asked, made, tmp_path) == [
        f"a server has seen drift since: {', '.join(second.summary()['moved'])} (drift-people.json)"
    ]
    assert not overdue(asked, time.time() + 1, tmp_path)
    assert watch().summary()["alarms"] == 1 and watch("another package").summary()["alarms"] == 0
    (tmp_path / "drift-people.json").write_text("{")
    assert watch().summary()["periods"] == 0 and "begins anew" in said[-1]


def test_the_server_says_what_has_moved(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    old = tmp_path / "old"
    packaged("numbers_table").copy(old)
    (old / "statistics.json").unlink()
    reseal(old)
    row = json.loads(table_requests(packaged("classes_table"), "people")[0].body)
    models = (f"people={packaged('classes_table').path}", f"old={old}")
    with RunningServer(*models, "--drift", "1 s", "--state", tmp_path / "state", "--workers", 1) as server:
        assert "drift of old can't be watched: its package has no statistics" in server.said

        def alarmed() -> bool:
            body = json.dumps([{**row, "age": 500.0}] * 40).encode()
            assert server.post("/models/people/predict", body).status == 200
            return "drift of people" in server.said

        server.until(alarmed, "see the drift")
        assert "shares have moved in" in server.said
        server.until(
            lambda: 'flatout_drift_alarms_total{model="people"} 0' not in server.get("/metrics").body.decode(), "count it"
        )
        assert 'flatout_drift_effect{model="people",column="age"}' in server.get("/metrics").body.decode()


def test_a_front_counts_a_sample_of_what_it_prepares(packaged: Callable[[str], Any]) -> None:
    package, sampling = open_package(packaged("classes_table").path), DriftSampling()
    inputs = {name: column.numpy()[:5] for name, column in package.samples.rows.items()}
    asked = 0
    while sampling.wants():
        sampling.keep(package, inputs)
        asked += 1
    (found,) = sampling.counted()
    assert found["rows"] == 5 * asked and all(sum(one) == 5 * asked for one in found["counts"])
    assert found["package"] == package.folder.hash and sampling.wants() and not sampling.counted()
