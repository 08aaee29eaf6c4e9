"""How many processes train most together, where trials can't be stacked: measured, as many as fit the memory of the device."""

from __future__ import annotations

import time

from flatout.tuning.crew.crew import PackedRate, TrialCrew
from flatout.tuning.crew.placing import Trials
from flatout.tuning.training.layout import Layout, packed

_BETTER = 1.1  # several processes must be faster by this factor than fewer
_WORTH_S = 60.0  # of training one after another, above which it is tried at all
_WORTH = 4  # times what the last try took: training that is left, before twice as many are tried
_TIMED_S = 0.6
_ROOM = 0.9  # of the free memory


def packed_if_faster(crew: TrialCrew, trials: Trials, steps: int, serial: Layout) -> Layout:
    """`steps`: of each trial. With a process for each core of a CPU; with two, four, eight on a GPU, while that pays."""
    on_device = serial.threads == 0
    best, fastest = serial, max(serial.rates.values(), default=0.0) * crew.devices
    count = 2 * crew.devices if on_device else crew.most
    if len(trials) < 2 or not crew.devices < count <= crew.most or not fastest or len(trials) * steps / fastest <= _WORTH_S:
        return serial
    while count <= crew.most:
        began_s = time.monotonic()
        found = crew.rate_packed(trials[0], _TIMED_S, count)
        if found.steps_s <= _BETTER * fastest:
            break
        best, fastest = packed(serial, count, found.steps_s), found.steps_s
        is_worth_it = len(trials) * steps / fastest > _WORTH * (time.monotonic() - began_s)
        if not is_worth_it or not _has_room_for(count // crew.devices, found):
            break
        count *= 2
    crew.dismiss_all_but(max(best.processes, crew.devices))
    return best


def _has_room_for(more: int, found: PackedRate) -> bool:
    """On each device."""
    return found.free_bytes is None or more * found.bytes_each <= _ROOM * found.free_bytes
