"""Convolutions whose pictures lie channel by channel are turned around before and after, again and again."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.findings import slow_convolutions
from flatout.machine.comparisons import channels_last
from flatout.machine.optimisations import CHANNELS_LAST


def _is_onednn_best(case: Case) -> bool:
    """Where convolutions are torch's own, or should be, it makes no difference how pictures lie."""
    return bool(torch.backends.mkldnn.enabled) and slow_convolutions.factor_of(case) == 1.0


def look(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.training_calls if call.has_convolutions and call.channels_last is False and call.batch]
    if not calls or (not case.on_device and not _is_onednn_best(case)):
        return
    call = max(calls, key=lambda one: one.seconds)
    compared = channels_last(case.device, slow_convolutions.of_trace(case))
    gain = case.gains.expected(CHANNELS_LAST, case.device, compared, call.autocast or call.parameter_dtype)
    if gain is None:
        return
    spent_ms = case.rows[kinds.CONVOLUTION]
    yield Finding(
        CHANNELS_LAST.finding,
        spent_ms * (1 - 1 / gain.factor),
        call.where,
        "The convolutions get their pictures channel by channel",
        f"{show_seconds(spent_ms / 1e3)} of convolutions a step; channels_last, {gain.words}",
        "model.to(memory_format=torch.channels_last), and the same for the input",
        short=CHANNELS_LAST.words,
    )
