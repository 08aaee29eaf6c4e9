"""torch's native convolutions instead of oneDNN's and NNPACK's: 1.6 times as fast on a Neoverse N1."""

from __future__ import annotations

from typing import Any

import torch

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.optimisations import OWN_CONVOLUTIONS


class OwnConvolutions(Remedy):
    name = OWN_CONVOLUTIONS.name

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        gain = predicted(diagnosis, OWN_CONVOLUTIONS.finding)
        return [] if gain is None else [Offer(self.name, "on", "off", gain)]

    def apply(self, value: Any, hooks: Hooks) -> None:
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        torch.backends.nnpack.set_flags(False)

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        optimizer = diagnosis.case.optimizer
        at = placed(optimizer.made) if optimizer is not None else None
        switched = "torch.backends.mkldnn.enabled = False; torch.backends.nnpack.set_flags(False)"
        return [Edit(*at, statement=switched)] if at else []
