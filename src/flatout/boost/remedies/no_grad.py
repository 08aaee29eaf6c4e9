"""Runs evaluation without building autograd graphs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.remedy import EVALUATIONS, Offer, Remedy, predicted
from flatout.doctor import where
from flatout.doctor.diagnosis import Diagnosis

_TRAIN, _EVAL = "train", "eval"


class NoGrad(Remedy):
    """Its value: the lines that evaluate, each with the model's mode there."""

    name = "no_grad_evaluation"
    measures = EVALUATIONS
    can_be_a_line = False  # it depends on line numbers

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        seen = diagnosis.case.seen
        calls = [call for call in seen.calls if call.gradient and call.is_in(seen.evaluations)]
        lines = sorted({f"{call.where} {_TRAIN if call.training else _EVAL}" for call in calls if call.where})
        return [Offer(self.name, ", ".join(lines), "off", predicted(diagnosis, "grad_in_eval"))] if lines else []

    def apply(self, value: Any, hooks: Hooks) -> None:
        lines = set(evaluating_lines(value))
        modes = {training for _, training in lines}

        def around(module: nn.Module) -> AbstractContextManager[None]:
            evaluates = module.training in modes and torch.is_grad_enabled() and (where.caller(), module.training) in lines
            return torch.no_grad() if evaluates else nullcontext()  # type: ignore[return-value]

        hooks.around.append(around)

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        trains = [at for call in diagnosis.case.training_calls if (at := placed(call.where)) is not None]
        evaluates = [at for line, _ in evaluating_lines(value) if (at := placed(line)) is not None]
        lines = tuple(line for _, line in trains)
        # if a library trains from this file, the function may be part of training
        alone = [at for at in evaluates if all(file == at[0] for file, _ in trains)]
        return [Edit(*at, decorator="@torch.no_grad()", not_around=lines) for at in alone]


def evaluating_lines(value: str) -> list[tuple[str, bool]]:
    """The lines that evaluate, and whether the model is in training mode there."""
    pairs = [written.rpartition(" ") for written in value.split(", ")]
    return [(line, mode == _TRAIN) for line, _, mode in pairs]
