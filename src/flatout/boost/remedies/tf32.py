"""float32 matrix products in tf32 on tensor cores: ten bits of mantissa per factor."""

from __future__ import annotations

from typing import Any

import torch

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.remedy import Offer, Remedy
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.optimisations import TF32


class Tf32(Remedy):
    name = TF32.name
    of_gpu = True
    written_in_part = True
    shortens_computing = True
    precision = "tf32"

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        if not case.on_device or case.seen.matmul_precision != "highest":
            return []
        return [Offer(self.name, "on", "off")]

    def apply(self, value: Any, hooks: Hooks) -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        optimizer = diagnosis.case.optimizer
        at = placed(optimizer.made) if optimizer is not None else None
        return [Edit(*at, statement='torch.set_float32_matmul_precision("high")')] if at else []
