"""Compiled code has to be called, too: on a CPU only a model of many operators is told to be compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.doctor import marks
from flatout.doctor.account import EVALUATION
from flatout.doctor.case import Case, make_case
from flatout.doctor.diagnosis import diagnose
from flatout.doctor.findings import launch_bound
from flatout.doctor.marks import Mark
from flatout.doctor.seen import Calls, ScriptRecord
from flatout.doctor.trace import Span, Trace

US = 1_000


def case(operators: int, beside: int = 0, calls: int = 1) -> Case:
    """A step of so many layers of 10 us each, all of it calling, in so many calls, and others that are no part of the model."""
    forward = Span(0, operators * 10 * US, "flatout#forward", Mark(marks.FORWARD, "train.py:10"))
    inside = [Span(k * 10 * US, (k * 10 + 8) * US, "aten::linear") for k in range(operators)]
    inner = [Span((k * 10 + 2) * US, (k * 10 + 7) * US, "aten::addmm") for k in range(operators)]
    outside = [Span((operators + k) * 10 * US, ((operators + k) * 10 + 8) * US, "aten::add") for k in range(beside)]
    end = (operators + beside) * 10 * US
    called = Calls("Net", "train.py:10", True, True, "", "float32", "cpu", False, None, False, count=30 * calls, between=30)
    loss = Calls("CrossEntropyLoss", "train.py:10", True, True, "", "", "cpu", False, None, False, count=30, between=30)
    seen = ScriptRecord("cpu", 100, [], [], calls=[called, loss], cores=2, window_steps=10, window_s=10 * end / 1e9)
    return make_case(seen, Trace(0, end, 1, [forward, *inside, *inner, *outside]), None, 8e-6)


def test_operators_are_counted_once_and_in_the_model_alone() -> None:
    assert launch_bound.operators_of_models(case(30)) == 30
    assert launch_bound.operators_of_models(case(30, beside=200)) == 30


def test_recurrent_layers_are_left_alone_by_the_compiler() -> None:
    told = case(960)
    assert list(launch_bound.look(told))
    assert not list(launch_bound.look(replace(told, trace=replace(told.trace, counts={"aten::lstm": 1, "aten::mm": 900}))))


@pytest.mark.parametrize(("operators", "beside", "calls"), [(30, 0, 1), (80, 0, 1), (30, 400, 1), (240, 0, 8)])
def test_a_model_of_few_operators_is_not_told_to_be_compiled(operators: int, beside: int, calls: int) -> None:
    assert not list(launch_bound.look(case(operators, beside, calls)))


def test_the_more_operators_the_more_is_gained() -> None:
    gains = []
    for operators in (120, 240, 960):
        told = case(operators)
        (finding,) = launch_bound.look(told)
        gains.append(finding.predicted_gain(told.step_ms))
    assert 1.0 < gains[0] < gains[1] < gains[2] < 2.0


def test_an_evaluation_before_the_first_steps_hides_no_finding_from_boost() -> None:
    """Nobody knows yet how seldom it comes."""
    told = case(960)
    evaluated = replace(told, rows={**told.rows, EVALUATION: 200 * told.step_ms})
    assert "launch_bound" not in {one.id for one in diagnose(evaluated).findings}
    assert "launch_bound" in {one.id for one in diagnose(evaluated.of_steps()).findings}
