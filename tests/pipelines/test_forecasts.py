"""What --dry says a stage will take, from what it took before."""

from __future__ import annotations

import pytest

from flatout.pipelines.stages.forecast import forecast
from flatout.pipelines.stages.records import StageRecord


def ran(seconds: float, size: float = 1e6, kind: str = "run", **more: object) -> StageRecord:
    return StageRecord("one", kind, "key", "done", seconds=seconds, size=size, **more)  # type: ignore[arg-type]


def test_of_equal_sizes_it_is_the_median_of_those_that_ran_alone() -> None:
    past = [ran(10.0), ran(12.0), ran(11.0), ran(90.0, alone=False)]
    assert forecast(past, 1e6, None, "").seconds == 11.0
    assert forecast([], 1e6, None, "").seconds is None


def test_of_other_sizes_it_follows_what_grew() -> None:
    past = [ran(3.0, 1e6), ran(5.0, 2e6), ran(7.0, 3e6)]  # one second, and two for each million
    assert forecast(past, 10e6, None, "").seconds == pytest.approx(21.0)
    assert forecast([ran(10.1)], 2e6, None, "").seconds == pytest.approx(20.1)
    assert forecast([ran(9.0, kind="export")], 50e6, None, "").seconds == 9.0


def test_a_training_scales_with_its_epochs_but_not_its_start() -> None:
    past = [ran(14.0, kind="train", amount=4.0, unit="epochs", growing_s=8.0, joules=1000.0)]
    found = forecast(past, 1e6, 8.0, "epochs")
    assert found.seconds == pytest.approx(22.0) and found.joules == pytest.approx(1000 * 22 / 14)
    assert forecast(past, 1e6, 600.0, "seconds").seconds is None, "a budget of time says nothing of epochs"
