"""How much of the host other processes use while this one works."""

from __future__ import annotations

import time

import psutil

from flatout.machine.host import affinity_cores

_ENOUGH = 0.8  # of the cores that are ours to use


class OthersWork:
    """Since this was made."""

    def __init__(self) -> None:
        self._began_s, self._all_s, self._own_s = time.monotonic(), _busy_s(), _own_s()

    def in_words(self) -> str | None:
        """None where they left enough."""
        past_s = time.monotonic() - self._began_s
        if past_s <= 0:
            return None
        others = max(0.0, (_busy_s() - self._all_s - (_own_s() - self._own_s)) / past_s)
        cores = psutil.cpu_count() or 1
        if cores - others >= _ENOUGH * affinity_cores():
            return None
        return f"other processes kept {others:.1f} of {cores} cores busy meanwhile: these are figures of a shared machine"


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_s() -> float:
    """With processes that were started from here."""
    own = psutil.Process()
    spent = sum(own.cpu_times()[:4])
    for child in own.children(recursive=True):
        try:
            spent += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue
    return float(spent)
