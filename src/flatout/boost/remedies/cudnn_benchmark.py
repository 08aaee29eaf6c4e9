"""Lets cuDNN time its algorithms once per shape and use the fastest."""

from __future__ import annotations

from typing import Any

import torch

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.remedy import Offer, Remedy
from flatout.doctor.diagnosis import Diagnosis


class CudnnBenchmark(Remedy):
    name = "cudnn_benchmark"
    of_gpu = True
    shortens_computing = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        has = any(call.has_convolutions for call in case.training_calls)
        return [Offer(self.name, "on", "off")] if case.on_device and has and not case.seen.cudnn_benchmark else []

    def apply(self, value: Any, hooks: Hooks) -> None:
        torch.backends.cudnn.benchmark = True

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        optimizer = diagnosis.case.optimizer
        at = placed(optimizer.made) if optimizer is not None else None
        return [Edit(*at, statement="torch.backends.cudnn.benchmark = True")] if at else []
