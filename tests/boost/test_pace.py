"""What is said of a run that went on long after its receipt was written."""

from __future__ import annotations

import pytest

from flatout.boost import pace
from flatout.boost.pace import Ran, ScriptPace


def test_steps_are_told_apart_from_what_comes_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now_s)
    ran = ScriptPace()
    for step in range(1, 1001):
        now_s += 0.01 if step % 50 else 2.0  # an evaluation
        ran.step_over()
    found = ran.ran()
    assert found is not None and found.steps == 1000 and found.step_s == pytest.approx(0.01)


def test_too_few_steps_say_nothing() -> None:
    ran = ScriptPace()
    for _ in range(20):
        ran.step_over()
    assert ran.ran() is None


@pytest.mark.parametrize(("step_s", "lines"), [(0.0105, 1), (0.019, 2)])
def test_a_run_that_falls_short_of_its_receipt_says_so(step_s: float, lines: int) -> None:
    said: list[str] = []
    Ran(500, step_s).tell(0.02, 2.0, said.append)
    assert len(said) == lines and f"{0.02 / step_s:.2f}x" in said[0]
    assert lines == 1 or "less than the receipt's 2.00x" in said[1]
