"""On some CPUs the library that torch asks for its convolutions is slower than torch itself."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.machine.convolutions import own_gain

_FASTER = 1.1
_LEAST = 0.1  # of a step


def factor_of(case: Case) -> float:
    """How many times as fast torch's own convolutions are, measured in the layout that takes longest; 1 where they are not."""
    calls = [call for call in case.training_calls if call.has_convolutions and not call.compiled]
    if case.on_device or not calls or case.share(case.rows[kinds.CONVOLUTION]) < _LEAST:
        return 1.0
    factor = own_gain(max(calls, key=lambda one: one.seconds).channels_last is True)
    return factor if factor >= _FASTER else 1.0


def look(case: Case) -> Iterator[Finding]:
    factor, spent_ms = factor_of(case), case.rows[kinds.CONVOLUTION]
    if factor == 1.0:
        return
    call = max((call for call in case.training_calls if call.has_convolutions), key=lambda one: one.seconds)
    yield Finding(
        "slow_convolutions",
        spent_ms * (1 - 1 / factor),
        call.where,
        "torch's own convolutions are faster on this CPU than those of oneDNN, which it asks",
        f"{show_seconds(spent_ms / 1e3)} of convolutions a step; torch's own were measured to be {factor:.2g} times as fast",
        "torch.backends.mkldnn.enabled = False; torch.backends.nnpack.set_flags(False)",
        short="own convolutions",
    )
