"""Gradients in float16 below 6e-8 become zero: without a scaler parts of the model stop learning, silently."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    half = [call for call in case.training_calls if call.autocast == "float16" or call.parameter_dtype == "float16"]
    if not half or case.seen.scaler:
        return
    call = max(half, key=lambda one: one.count)
    yield Finding(
        "fp16_unscaled",
        case.step_ms,
        call.where,
        "float16 is trained without a GradScaler: small gradients become zero, and what the steps compute can't be trusted",
        f"{call.module} runs in float16 "
        + ("by autocast" if call.autocast == "float16" else "weights") + ", and no GradScaler was used",
        "use bfloat16, which needs none; or torch.amp.GradScaler around backward and step",
        short="bfloat16",
        gain=1.0,
    )  # fmt: skip
