"""Training in evaluation mode: after an evaluation the model was not set back, so dropout is off."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding

_FEWEST = 3  # steps


def look(case: Case) -> Iterator[Finding]:
    first = {(call.where, call.module) for call in case.training_calls if call.training}
    for call in case.training_calls:
        same = (call.where, call.module) in first
        if same and not call.training and call.mode_matters and call.between >= _FEWEST:
            yield Finding(
                "eval_mode_in_training",
                case.step_ms,
                call.where,
                "The model trains in evaluation mode: dropout is off, and batch norm does not follow the data",
                f"{call.between} steps called {call.module} with training=False, after others with training=True",
                "model.train() after each evaluation, or at the beginning of each epoch",
                gain=1.0,
                about=WRONG,
            )
            return
