"""CPU use of other processes while this one works."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from flatout.machine.host import affinity_cores

_ENOUGH = 0.8  # of the cores that this process may use


class OthersWork:
    """Counts from its creation."""

    def __init__(self) -> None:
        self._began_s, self._spent = time.monotonic(), _spent_s()

    def in_words(self) -> str | None:
        """None if other processes left enough cores, or if it can't be measured."""
        past_s, spent = time.monotonic() - self._began_s, _spent_s()
        if spent is None or self._spent is None or past_s <= 0:
            return None
        others = max(0.0, (spent[0] - self._spent[0] - (spent[1] - self._spent[1])) / past_s)
        cores = psutil.cpu_count() or 1
        if cores - others >= _ENOUGH * affinity_cores():
            return None
        return f"other processes used {others:.1f} of {cores} cores during this, so the figures are for a shared machine"


def _spent_s() -> tuple[float, float] | None:
    """CPU seconds of the whole machine, and of this process and its children."""
    try:
        times, own = psutil.cpu_times(), psutil.Process()
        whole = sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))
        spent = sum(own.cpu_times()[:4])
        for child in own.children(recursive=True):
            with suppress(psutil.Error):
                spent += sum(child.cpu_times()[:2])
    except (psutil.Error, OSError):
        return None
    return float(whole), float(spent)
