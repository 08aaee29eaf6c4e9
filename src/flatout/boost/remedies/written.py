"""Finds where a line about the model goes in a script: before the statement that creates the optimizer from its weights."""

from __future__ import annotations

from flatout.boost.patching import Edit, placed
from flatout.doctor.diagnosis import Diagnosis


def before_the_loop(diagnosis: Diagnosis, statement: str) -> list[Edit]:
    case = diagnosis.case
    optimizer = case.optimizer
    calls = [call for call in case.training_calls if call.parameter_dtype]
    if optimizer is None or not optimizer.made or not calls:
        return []
    made, called = placed(optimizer.made), placed(max(calls, key=lambda one: one.seconds).where)
    if made is None or called is None or made[0] != called[0]:
        return []
    return [Edit(made[0], made[1], statement=statement, model_line=called[1])]
