"""Convolutions whose pictures lie channel by channel are turned around before and after, again and again."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.findings import slow_convolutions

_ON_CPU = 1.38  # a convnet on two cores
_ON_GPU = {"float16": 1.9, "bfloat16": 1.9}  # ResNet-50 on an H200 in bf16; in fp32 and tf32 it makes no difference to speak of


def _is_onednn_best(case: Case) -> bool:
    """Where convolutions are torch's own, or should be, it makes no difference how pictures lie."""
    return bool(torch.backends.mkldnn.enabled) and slow_convolutions.factor_of(case) == 1.0


def look(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.training_calls if call.has_convolutions and call.channels_last is False and call.batch]
    if not calls or (not case.on_device and not _is_onednn_best(case)):
        return
    call = max(calls, key=lambda one: one.seconds)
    factor = _ON_GPU.get(call.autocast or call.parameter_dtype, 1.0) if case.on_device else _ON_CPU
    spent_ms = case.rows[kinds.CONVOLUTION]
    yield Finding(
        "channels_first",
        spent_ms * (1 - 1 / factor),
        call.where,
        "The convolutions get their pictures channel by channel",
        f"{show_seconds(spent_ms / 1e3)} of convolutions a step; channels_last is about {factor:.2g} times as fast",
        "model.to(memory_format=torch.channels_last), and the same for the input",
        short="channels_last",
    )
