"""Convolutions use the channels-first layout, which is converted before and after each of them."""

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
    """The layout matters only to oneDNN; torch's native convolutions are as fast in both."""
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
        "Convolutions use the channels-first layout",
        f"convolutions take {show_seconds(spent_ms / 1e3)} per step; channels_last, {gain.words}",
        "model.to(memory_format=torch.channels_last), and the same for the input",
        short=CHANNELS_LAST.words,
        estimate=not gain.measured,
    )
