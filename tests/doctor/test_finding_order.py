"""The order of findings: what is wrong, then by cost, where what is not sure and what changes the training count less."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flatout.base.tree import to_text
from flatout.doctor import diagnosis as report
from flatout.doctor.account import PYTHON, ROWS, Account
from flatout.doctor.case import Case
from flatout.doctor.diagnosis import diagnose, doc
from flatout.doctor.finding import CHANGES, WRONG, Finding
from flatout.doctor.observing.writing import is_write
from flatout.doctor.seen import ScriptRecord
from flatout.doctor.trace import Trace

MEASURED = Finding("measured", 3.0, "train.py:1", "Waits", "seen", "wait less")
ESTIMATE = Finding("estimate", 5.0, "train.py:2", "Slow layout", "usually 2x", "another layout", estimate=True)
BATCH = Finding("batch", 7.0, "train.py:3", "A small batch", "overhead", "a larger one", about=CHANGES)
MODE = Finding("mode", 0.0, "train.py:4", "The metrics are wrong", "training=True", "model.eval()", about=WRONG)


def told(findings: Sequence[Finding], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    monkeypatch.setattr(report, "FINDINGS", (lambda case: iter(findings),))
    rows = {**dict.fromkeys(ROWS, 0.0), PYTHON: 10.0}
    found = diagnose(Case(ScriptRecord("cpu"), Trace(0, 1, 1, []), Account(1, 1), rows, None))
    return [one.id for one in found.findings], to_text(doc(found))


def test_wrong_results_come_first_and_what_is_sure_before_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    order, text = told([BATCH, ESTIMATE, MEASURED, MODE], monkeypatch)
    assert order == ["mode", "measured", "estimate", "batch"]
    assert "What makes the results wrong:\n1. The metrics are wrong  train.py:4  [mode]" in text
    assert "2. Waits: 30%  train.py:1" in text and "3. Slow layout: 50% (estimate)" in text
    assert "4. A small batch: 70% (changes the training)" in text


def test_a_change_of_the_training_that_is_worth_several_times_as_much_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Finding("small", 0.5, "train.py:1", "Waits a little", "seen", "wait less")
    order, text = told([small, BATCH], monkeypatch)
    assert order == ["batch", "small"] and "wrong" not in text


def test_wrong_results_are_told_where_nothing_costs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = told([MODE], monkeypatch)
    assert "1. The metrics are wrong" in text and "Nothing found that would save more than 1% of a step." in text


@pytest.mark.parametrize(
    "line, writes",
    [
        ("log.write(json.dumps(row))", True),
        ("writer.writerow([step, loss])", True),
        ("log.flush()", True),
        ("sys.stdout.write(text)", False),
        ("rewrite(log)", False),
        ("loss.backward()", False),
    ],
)
def test_lines_that_write(line: str, writes: bool) -> None:
    assert is_write(line) == writes
