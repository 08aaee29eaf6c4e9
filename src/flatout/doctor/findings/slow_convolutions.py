"""On some CPUs oneDNN, which torch uses for convolutions, is slower than torch's native convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.machine.comparisons import in_channels_last, torchs_own
from flatout.machine.optimisations import OWN_CONVOLUTIONS
from flatout.measure.counts import Call, Operation
from flatout.measure.groups import CONVOLUTIONS

_FASTER = 1.1
_LEAST = 0.1  # of a step


def of_trace(case: Case) -> list[Operation]:
    return [one for one in case.trace.operations if one.group == CONVOLUTIONS]


def factor_of(case: Case) -> float:
    """Speed-up of torch's native convolutions over oneDNN, in the layout of the longest calls; 1 if they are not faster."""
    calls = [call for call in case.training_calls if call.has_convolutions and not call.compiled]
    few = not calls or case.share(case.rows[kinds.CONVOLUTION]) < _LEAST
    if case.on_device or few or not torch.backends.mkldnn.enabled:
        return 1.0
    in_layout = in_channels_last if max(calls, key=lambda one: one.seconds).channels_last is True else _as_it_is
    gain = case.gains.expected(OWN_CONVOLUTIONS, case.device, torchs_own(case.device, of_trace(case), in_layout))
    return gain.factor if gain is not None and gain.factor >= _FASTER else 1.0


def _as_it_is(call: Call) -> Call:
    return call


def look(case: Case) -> Iterator[Finding]:
    factor, spent_ms = factor_of(case), case.rows[kinds.CONVOLUTION]
    if factor == 1.0:
        return
    call = max((call for call in case.training_calls if call.has_convolutions), key=lambda one: one.seconds)
    yield Finding(
        OWN_CONVOLUTIONS.finding,
        spent_ms * (1 - 1 / factor),
        call.where,
        "torch uses oneDNN for convolutions, but its native convolutions are faster on this CPU",
        f"convolutions take {show_seconds(spent_ms / 1e3)} per step; native ones, measured here: {factor:.3g}x",
        "torch.backends.mkldnn.enabled = False; torch.backends.nnpack.set_flags(False)",
        short=OWN_CONVOLUTIONS.words,
    )
