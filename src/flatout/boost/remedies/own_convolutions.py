"""torch's own convolutions instead of oneDNN's and NNPACK's, which are slow on some CPUs: 1.6 times on a Neoverse N1."""

from __future__ import annotations

from typing import Any

import torch

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.remedy import Offer, Remedy
from flatout.doctor import kinds
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.convolutions import own_gain

_FASTER = 1.1
_LEAST = 0.1  # of a step


class OwnConvolutions(Remedy):
    name = "own_convolutions"

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        spent_ms = case.rows[kinds.CONVOLUTION]
        compiled = any(call.compiled for call in case.training_calls)
        if case.on_device or compiled or case.share(spent_ms) < _LEAST or (factor := own_gain()) < _FASTER:
            return []
        return [Offer(self.name, "on", "off", case.step_ms / (case.step_ms - spent_ms * (1 - 1 / factor)))]

    def apply(self, value: Any, hooks: Hooks) -> None:
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        torch.backends.nnpack.set_flags(False)

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        optimizer = diagnosis.case.optimizer
        at = placed(optimizer.made) if optimizer is not None else None
        switched = "torch.backends.mkldnn.enabled = False; torch.backends.nnpack.set_flags(False)"
        return [Edit(*at, statement=switched)] if at else []
