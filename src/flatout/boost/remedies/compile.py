"""torch.compile of the modules that the script calls and trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flatout.boost.hooks import Hooks, learns
from flatout.boost.patching import Edit
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.boost.remedies.written import before_the_loop
from flatout.doctor.diagnosis import Diagnosis

_WORTH_ON_CPU = 1.1  # compiling takes long there and gains little


class Compile(Remedy):
    name = "compile"

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        calls = diagnosis.case.training_calls
        gain = predicted(diagnosis, "launch_bound", "small_batch")
        if not calls or any(call.compiled for call in calls):
            return []
        if not diagnosis.case.on_device and (gain or 1.0) < _WORTH_ON_CPU:
            return []
        return [Offer(self.name, "on", "off", gain)]

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.prepare.append(_compiled)

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        return before_the_loop(diagnosis, "{model}.compile()")


def _compiled(module: nn.Module) -> bool:
    """At its first call in training: before that it may be evaluated, or looked at by a summary."""
    if not learns(module) or not module.training or not torch.is_grad_enabled():
        return False
    module.compile()
    return True
