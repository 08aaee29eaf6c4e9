"""Schedules by value: at the first step, through warm-up, and at the last."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from test_engine_kit import kinds, train

from flatout.base.errors import UsageError
from flatout.engine.optimizers import parse_schedule

STEPS = 100


def rates(written: Any, steps: int = STEPS) -> list[float]:
    schedule = parse_schedule(written)
    return [schedule.at(step, step / steps, steps) for step in range(steps)]


def test_constant() -> None:
    assert rates("constant") == [1.0] * STEPS


def test_linear_from_the_peak_to_nothing() -> None:
    assert rates({"linear": {"warmup": 0}}) == pytest.approx([1 - step / STEPS for step in range(STEPS)])
    assert rates({"linear": {"warmup": 0, "final": 0.5}})[-1] == pytest.approx(0.505)


def test_cosine() -> None:
    values = rates({"cosine": {"warmup": 0, "final": 0.1}})
    assert values[0] == 1 and values[50] == pytest.approx(0.55) and values[-1] == pytest.approx(0.1, abs=1e-3)
    assert values == pytest.approx([0.1 + 0.45 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)])


def test_one_cycle_goes_up_and_down() -> None:
    values = rates({"one_cycle": {"peak_at": 0.3, "start": 0.04, "final": 1e-4}})
    assert values[0] == pytest.approx(0.04) and values[30] == pytest.approx(1.0) and values[-1] == pytest.approx(1e-4, abs=1e-3)
    assert values[:31] == sorted(values[:31]) and values[30:] == sorted(values[30:], reverse=True)


def test_warmup_stable_decay() -> None:
    values = rates({"warmup_stable_decay": {"warmup": 0, "decay": 0.2}})
    assert values[:80] == [1.0] * 80
    assert values[80:] == pytest.approx([1 - step / 20 for step in range(20)])


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "one_cycle", "warmup_stable_decay"])
@pytest.mark.parametrize("warmup", [10, 0.1], ids=["steps", "share"])
def test_every_schedule_warms_up(name: str, warmup: float) -> None:
    values = rates({name: {"warmup": warmup}})
    first = rates({name: {"warmup": 0}})[0]
    assert values[:11] == pytest.approx([(step + 1) / 11 for step in range(10)] + [first])
    assert all(0 < value <= 1 for value in values), "every step learns, and none above the peak"


@pytest.mark.parametrize("name", ["linear", "cosine", "warmup_stable_decay"])
def test_warm_up_is_the_default_where_it_is_usual(name: str) -> None:
    values = rates(name)
    assert values[:6] == pytest.approx([(step + 1) / 6 for step in range(5)] + [1.0])


def test_a_warm_up_longer_than_the_budget_never_falls() -> None:
    values = rates({"cosine": {"warmup": 200}})
    assert values == sorted(values) and values[-1] < 1


def test_a_budget_that_is_spent_rather_than_counted_has_no_number_of_steps() -> None:
    schedule = parse_schedule({"cosine": {"warmup": 4}})
    assert [schedule.at(step, 0.0, None) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert schedule.at(50, 0.5, None) == pytest.approx(0.5)
    assert parse_schedule({"cosine": {"warmup": 0.2}}).at(0, 0.0, None) > 0
    assert schedule.at(10_000, 1.7, None) == 0, "the last step may overrun a budget of time"


@pytest.mark.parametrize(
    ("written", "said"),
    [("cosin", "did you mean 'cosine'"), ({"cosine": {"warmup": -1}}, "warmup"), ({"cosine": {"warmup": "long"}}, "warmup")],
)
def test_mistakes_are_said(written: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_schedule(written)


def test_the_loop_uses_them(tmp_path: Path) -> None:
    run = train(tmp_path, lr=0.04, schedule={"linear": {"warmup": 3}}, settings={"log_every": 1}, budget="12 steps")
    expected = [0.01, 0.02, 0.03, *(0.04 * (1 - step / 9) for step in range(9))]
    assert [event["lr"] for event in kinds(run, "step")] == pytest.approx(expected)
