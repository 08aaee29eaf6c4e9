"""float16 gradients below 6e-8 become zero: without a scaler, parts of the model silently stop learning."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import WRONG, Finding


def look(case: Case) -> Iterator[Finding]:
    half = [call for call in case.training_calls if call.autocast == "float16" or call.parameter_dtype == "float16"]
    if not half or case.seen.scaler:
        return
    call = max(half, key=lambda one: one.count)
    yield Finding(
        "fp16_unscaled",
        case.step_ms,
        call.where,
        "float16 training without a GradScaler: small gradients become zero, so the result can't be trusted",
        f"{call.module} runs in float16 "
        + ("(autocast)" if call.autocast == "float16" else "(its weights are float16)") + ", and no GradScaler was used",
        "use bfloat16, which needs no scaler, or torch.amp.GradScaler around backward and step",
        short="bfloat16",
        gain=1.0,
        about=WRONG,
    )  # fmt: skip
