"""What a step should take: its work, counted on tensors without data, over what this machine was measured to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.ceilings import Ceilings
from flatout.measure.counts import Counts, count_step
from flatout.plan.plan import Prediction

_UPDATE_PASSES = 7  # fused AdamW reads weight, gradient and two moments, and writes three of them


def predict(job: Job, settings: Settings, ceilings: Ceilings | None) -> Prediction:
    try:
        counts, rows = count_batch(job)
    except Exception as error:  # a forward that looks at its data can't be traced without any: no prediction, said so
        return Prediction(reason=f"the model can't be traced without data ({type(error).__name__})")
    flops_per_sample = counts.flops / rows
    if ceilings is None:
        return Prediction(flops_per_sample=flops_per_sample, reason="this machine has not been probed: flatout probe")
    matmul = ceilings.matmul_flops.get(settings.precision) or ceilings.matmul_flops.get("fp32")
    times = {
        "compute": counts.flops / matmul.value if matmul else 0.0,
        "memory bandwidth": counts.bytes / ceilings.copy_bytes_per_s.value if ceilings.copy_bytes_per_s else 0.0,
        "launching kernels": counts.operators * ceilings.launch_s.value if ceilings.launch_s else 0.0,
    }
    if settings.graph:
        times["launching kernels"] = 0.0
    bound = max(times, key=lambda name: times[name])
    if torch.device(settings.device).type == "cpu":  # the host launches and computes by turns
        step_s = times["launching kernels"] + max(times["compute"], times["memory bandwidth"])
    else:
        step_s = max(times.values())
    ceiling = matmul.value if matmul else None
    share = counts.flops / step_s / ceiling if step_s and ceiling else None
    return Prediction(step_s or None, flops_per_sample, ceiling, bound, share)


def count_batch(job: Job) -> tuple[Counts, int]:
    """Forward and backward of a typical batch without computing it, and the update's traffic; and the rows it has."""
    model = job.model
    state = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    rows, columns = job.data.typical_batch(job.batch)
    batch = {name: torch.zeros((rows, *col.shape), dtype=col.dtype, device="meta") for name, col in columns.items()}

    def step() -> None:
        loss_sum, weight = job.objective(_OnMeta(model, state), batch)
        (loss_sum / weight).backward()

    was_training = model.training
    try:
        counts = count_step(step)
    finally:
        model.train(was_training)
    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return Counts(counts.flops, counts.bytes + _UPDATE_PASSES * parameter_bytes, counts.operators), rows


class _OnMeta(nn.Module):
    """The model with its tensors swapped for ones that have a shape and no data."""

    def __init__(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        super().__init__()
        self._call: Any = lambda *given, **named: functional_call(model, state, given, named)

    def forward(self, *given: Any, **named: Any) -> Any:
        return self._call(*given, **named)
