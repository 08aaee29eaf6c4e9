"""Expectations on the columns of a table, and drift against the version that passed last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelines_here import Here, script

from flatout.base.errors import DataError
from flatout.pipelines.expectations.judging import judge


def table(folder: Path, rows: int = 2000, seed: int = 0, shift: float = 0.0, name: str = "calls.csv") -> Path:
    drawn = np.random.default_rng(seed)
    age, job = drawn.normal(40 + shift, 5, rows).round(1), drawn.choice(["admin.", "student", "retired"], rows)
    lines = [f"{i},{a},{j},{'yes' if a > 40 else 'no'}" for i, (a, j) in enumerate(zip(age, job, strict=True))]
    path = folder / name
    path.write_text("\n".join(["id,age,job,y", *lines, ""]))
    return path


def judged(path: Path, **spec: Any) -> dict[str, Any]:
    return judge({"table": str(path), "expect": {}, **spec}, path.parent)


def test_each_expectation_that_is_not_met_names_its_column(tmp_path: Path) -> None:
    path = table(tmp_path)
    path.write_text(path.read_text() + "7,,pilot,maybe\n")
    problems = judged(
        path,
        expect={
            "id": {"unique": True, "type": "whole"}, "age": {"range": [0, 45], "missing": 0, "type": "text"},
            "job": {"values": ["admin.", "student", "retired"], "type": "number"}, "y": {"values": ["yes", "no"]}, "jobb": {},
        },
        rows=[5000, None],
    )["problems"]  # fmt: skip
    assert sorted(one.split(":")[0] for one in problems) == ["age", "age", "age", "id", "job", "job", "jobb", "rows", "y"]
    told = "\n".join(problems)
    assert "'pilot'" in told and "'maybe'" in told and "did you mean 'job'?" in told and "1 repeats" in told
    assert "at least 5,000, got 2,001" in told


def test_a_table_as_expected_has_no_problems_in_any_form(tmp_path: Path) -> None:
    import gzip

    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    path = table(tmp_path)
    parquet.write_table(csv.read_csv(path), tmp_path / "calls.parquet")
    (tmp_path / "calls.csv.gz").write_bytes(gzip.compress(path.read_bytes().replace(b",", b";")))
    expect = {"age": {"type": "number", "range": [0, 100], "missing": 0}, "y": {"values": ["yes", "no"]}}
    for name in ("calls.csv", "calls.parquet", "calls.csv.gz"):
        found = judged(tmp_path / name, expect=expect)
        assert not found["problems"] and found["rows"] == 2000, name
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError):
        judged(tmp_path / "broken.parquet")


def test_noise_is_no_drift_and_a_shift_is(tmp_path: Path) -> None:
    reference = judged(table(tmp_path), drift=0.05)
    for seed in range(1, 9):
        assert not judged(table(tmp_path, 1000, seed), drift=0.02, reference=reference)["problems"]
    problems = judged(table(tmp_path, 1000, 1, shift=3.0), drift=0.05, reference=reference)["problems"]
    assert [one.split(":")[0] for one in problems] == ["age", "y"]
    gone = tmp_path / "gone.csv"
    gone.write_text("id,age,job\n" + "\n".join(f"{i},{30 + i % 20},admin." for i in range(2000)))
    told = judged(gone, drift=0.9, reference=reference)["problems"]
    assert any(one.startswith("y: was in the last version and is gone") for one in told)


def test_nobody_reads_a_table_that_is_not_as_expected_until_it_is_accepted(here: Here) -> None:
    table(here.folder)
    here.stages(
        reader=script("python twice.py calls.csv copied.csv", "copied.csv"),
        calls={"data": "calls.csv", "expect": {"age": {"type": "number"}}, "drift": 0.05},
    )
    assert here.did() == {"calls": "ran", "reader": "ran"}
    table(here.folder, seed=5, shift=4.0)
    outcome = here.run()
    assert outcome.exit_code == 1 and outcome.stages["reader"].status == "not run"
    assert "age" in outcome.stages["calls"].words and "moved since the last version" in outcome.stages["calls"].words
    assert here.did() == {"calls": "failed", "reader": "not run"}, "a table that failed is asked again"
    assert here.did(accept=["calls"]) == {"calls": "ran", "reader": "ran"}
    assert set(here.did().values()) == {"unchanged"}
    table(here.folder, seed=6, shift=4.0)
    assert here.did() == {"calls": "ran", "reader": "ran"}, "it is compared with the version that was accepted"
