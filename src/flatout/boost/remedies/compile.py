"""torch.compile for the modules that the script calls and trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flatout.boost.hooks import Hooks, learns
from flatout.boost.patching import Edit
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.boost.remedies.written import before_the_loop
from flatout.doctor.diagnosis import Diagnosis
from flatout.doctor.observing.calling import is_of_torch
from flatout.machine.optimisations import COMPILE

_WORTH_ON_CPU = 1.1  # compiling takes long on a CPU and gains little


class CompileRemedy(Remedy):
    name = COMPILE.name
    slow_to_try = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        calls = diagnosis.case.training_calls
        on_device = diagnosis.case.on_device
        gain = predicted(diagnosis, COMPILE.finding, "small_batch") if on_device else predicted(diagnosis, COMPILE.finding)
        if not calls or any(call.compiled for call in calls):
            return []
        if not on_device and (gain or 1.0) < _WORTH_ON_CPU:
            return []
        return [Offer(self.name, "on", "off", gain)]

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.prepare.append(_compiled)

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        """None for a model of a torch class: torch.compile would skip it, and a replaced `forward` would stay in copies."""
        of_torch = any(call.of_torch for call in diagnosis.case.training_calls if call.parameter_dtype)
        return [] if of_torch else before_the_loop(diagnosis, "{model}.compile()")


def _compiled(module: nn.Module) -> bool:
    """Compiles at the first training call; earlier calls may be an evaluation or a model summary."""
    if not learns(module) or not module.training or not torch.is_grad_enabled():
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return True  # TorchScript compiles it already
    if is_of_torch(module):
        # torch.compile skips code in torch's own files, such as Sequential's, unless other code calls it
        module._compiled_call_impl = torch.compile(lambda *args, **named: module._call_impl(*args, **named))
    else:
        module.compile()
    return True
