"""Traces stored between runs: read instead of traced, and traced again if they can't be used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout as fo
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.plan import traces, work
from flatout.plan.make import checked_plan
from flatout.plan.plan import Plan
from flatout.plan.traces import Traces
from flatout.plan.work import keep_traces, work_of
from flatout.recipe.build import build_job


def recipe(hidden: int = 16, **given: Any) -> fo.Recipe:
    data = fo.data.arrays(torch.randn(64, 8), torch.arange(64) % 3, classes=3, holdout=0.0)
    asked: dict[str, Any] = {"batch": 16, "lr": 0.1, "budget": "9 steps", "evaluate": None, "settings": {"device": "cpu"}}
    return fo.Recipe(**({"data": data, "model": {"mlp": {"hidden": [hidden]}}} | asked | given))


def job_keeping(folder: Path, key: str = "mlp") -> Job:
    job = build_job(recipe())
    keep_traces(job, Traces(folder, key))
    return job


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the traces made, in order."""
    asked: list[str] = []
    trace, update = work.trace, work._traced_update
    monkeypatch.setattr(work, "trace", lambda *given: asked.append("both ways") or trace(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(work, "_traced_update", lambda *given: asked.append("update") or update(*given))  # type: ignore[func-returns-value]
    return asked


def test_a_stored_trace_equals_the_original(tmp_path: Path, traced: list[str]) -> None:
    for settings in (Settings(), Settings(precision="bf16", micro_batch=4)):
        first, second = (work_of(job_keeping(tmp_path), settings) for _ in range(2))
        assert first == second and first.counts.flops > 0
        assert all(one.call is None for one in second.operations) and any(one.call for one in first.operations)
    assert traced == ["both ways", "update", "both ways"]


def test_operations_to_call_are_traced_again(tmp_path: Path, traced: list[str]) -> None:
    work_of(job_keeping(tmp_path), Settings())
    again = work_of(job_keeping(tmp_path), Settings(), to_call=True)
    assert all(one.call is not None for one in again.operations if one.key) and len(traced) == 4


@pytest.mark.parametrize(
    "damage", [b"", b'{"format": 1', b'{"format": 0, "operations": []}', b'{"format": 1, "operations": [[1]]}']
)
def test_a_damaged_file_is_traced_again(tmp_path: Path, traced: list[str], damage: bytes) -> None:
    first = work_of(job_keeping(tmp_path), Settings())
    for path in tmp_path.iterdir():
        path.write_bytes(damage)
    assert work_of(job_keeping(tmp_path), Settings()) == first and len(traced) == 4
    work_of(job_keeping(tmp_path), Settings())
    assert len(traced) == 4  # and repaired


def test_another_step_or_version_is_not_read(tmp_path: Path, traced: list[str]) -> None:
    for key in ("mlp", "mlp by other versions"):
        work_of(job_keeping(tmp_path, key), Settings())
    assert len(traced) == 4


def test_the_oldest_traces_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_MOST", 3)
    operations = work_of(job_keeping(tmp_path / "other"), Settings()).operations
    for second, form in enumerate("abcde"):
        Traces(tmp_path, "mlp").write(form, operations)
        newest = max(tmp_path.glob("*.json"), key=lambda path: path.stat().st_ctime_ns)
        os.utime(newest, (second, second))
    assert [form for form in "abcde" if Traces(tmp_path, "mlp").read(form)] == ["c", "d", "e"]


def test_a_folder_that_can_not_be_written_costs_a_trace(tmp_path: Path, traced: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        assert work_of(job_keeping(tmp_path / "file" / "traces"), Settings()).counts.flops
    assert len(traced) == 4


def planned(asked: fo.Recipe, cache: Path) -> Plan:
    return checked_plan(asked, build_job(asked), cache, limit_s=0)[0]


def test_a_second_plan_traces_nothing_and_predicts_the_same(tmp_path: Path, traced: list[str]) -> None:
    first = planned(recipe(), tmp_path)
    done = len(traced)
    again = planned(recipe(), tmp_path)
    assert done and again.prediction == first.prediction and len(traced) == done
    assert [(one.name, one.value) for one in again.choices] == [(one.name, one.value) for one in first.choices]
    planned(recipe(hidden=32), tmp_path)
    assert len(traced) > done  # another model


@pytest.mark.parametrize(
    "made",
    [
        lambda other: {"data": classes(30 if other else 3)},
        lambda other: {"model": frozen(other)},
        lambda other: {"model": nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5 if other else 0.1))},
    ],
    ids=["classes", "frozen", "dropout"],
)
def test_models_with_equal_code_but_different_structure_are_distinguished(tmp_path: Path, traced: list[str], made: Any) -> None:
    plans = []
    for other in (False, True):
        before = len(traced)
        plans.append(planned(recipe(**made(other)), tmp_path))
        assert len(traced) > before
    alone = planned(recipe(**made(True)), tmp_path / "alone")
    assert plans[1].prediction.flops_per_sample == alone.prediction.flops_per_sample


def classes(count: int) -> Any:
    return fo.data.arrays(torch.zeros(64, 8), torch.arange(64) % count, classes=count, holdout=0.0)


def frozen(on: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    model[0].requires_grad_(not on)
    return model


def test_an_untraceable_variant_does_not_block_timing_others(tmp_path: Path) -> None:
    class OnlyExact(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x)
            return (
                torch.linalg.vector_norm(out, dtype=torch.float64).float() + out if out.dtype == torch.float32 else out.view(1)
            )

    planned(recipe(model=lambda: OnlyExact()), tmp_path)
    (kept,) = tmp_path.glob("ceilings-*.json")
    assert json.loads(kept.read_text())["ceilings"]["operators"]


def test_operators_are_timed_again_if_their_times_were_lost(tmp_path: Path, traced: list[str]) -> None:
    planned(recipe(), tmp_path)
    (kept,) = tmp_path.glob("ceilings-*.json")
    kept.unlink()
    done = len(traced)
    again = planned(recipe(), tmp_path)
    assert len(traced) > done and again.prediction.step_s
    assert json.loads(kept.read_text())["ceilings"]["operators"]


@pytest.mark.parametrize(("steps", "timed"), [(9, False), (10**9, True)])
def test_a_short_run_starts_without_timing_operators(tmp_path: Path, steps: int, timed: bool) -> None:
    asked = recipe(budget=f"{steps} steps")
    checked_plan(asked, build_job(asked), tmp_path, limit_s=1e-6)
    (kept,) = tmp_path.glob("ceilings-*.json")
    assert bool(json.loads(kept.read_text())["ceilings"]["operators"]) is timed
