"""CPU use of other processes on the cores that this process may use."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flatout.machine.host import affinity_cores

BUSY = 0.25  # of these cores: measured figures are then poor
_LOOK_S = 0.2
_TICK_S = 0.05  # the kernel counts in ticks of 10 ms: a shorter look says nothing
_LOAD = Path("/proc/loadavg")
_BUSY_KINDS = ("user", "nice", "system", "irq", "softirq", "steal")


@dataclass(frozen=True)
class CpuUse:
    """Of other processes, in cores, out of the `cores` that this process may use."""

    others: float
    cores: int

    @property
    def share(self) -> float:
        return min(1.0, self.others / self.cores)

    @property
    def is_busy(self) -> bool:
        return self.share >= BUSY

    def in_words(self) -> str:
        return f"{self.share:.0%} of {self.cores} cores" if self.cores > 1 else f"{self.share:.0%} of the only core"


class OthersWork:
    """Counts from its creation."""

    def __init__(self) -> None:
        self._began_s, self._spent = time.monotonic(), _spent_s()

    def use(self) -> CpuUse | None:
        """None: it can't be measured, or not in so short a time."""
        past_s, spent = time.monotonic() - self._began_s, _spent_s()
        if spent is None or self._spent is None or past_s < _TICK_S:
            return None
        others = (spent[0] - self._spent[0] - (spent[1] - self._spent[1])) / past_s
        cores = affinity_cores()
        return CpuUse(min(float(cores), max(0.0, others)), cores)

    def in_words(self) -> str | None:
        """None if other processes left enough cores, or if it can't be measured."""
        used = self.use()
        if used is None or not used.is_busy:
            return None
        return f"other processes used {used.in_words()} during this, so the figures are for a shared machine"


def others_now(look_s: float = _LOOK_S) -> CpuUse | None:
    """Waits for `look_s`, unless no other process wants to run at this moment."""
    if nothing_else_runs():
        return None
    work = OthersWork()
    time.sleep(look_s)
    return work.use()


def busy_now(look_s: float = _LOOK_S) -> str | None:
    """A line if the machine is busy."""
    return busy_words(others_now(look_s))


def busy_words(used: CpuUse | None) -> str | None:
    if used is None or not used.is_busy:
        return None
    return f"this machine is busy: other processes use {used.in_words()}, so measured figures are poor and training is slower"


def nothing_else_runs() -> bool:
    """Whether this process alone wants to run at this moment; False if the system does not say."""
    try:
        return int(_LOAD.read_text().split()[3].partition("/")[0]) <= 1
    except (OSError, ValueError, IndexError):
        return False


def waited_s() -> float | None:
    """Seconds for which threads of this process that now exist were ready and got no core, in all; None: not counted here."""
    found = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += int((task / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return found / 1e9


def _children(process: psutil.Process) -> list[psutil.Process]:
    """Also those of its children. The kernel's own list is quick; psutil looks through all processes of the machine."""
    try:
        found, waiting = [], [process.pid]
        while waiting:
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                waiting += (below := [int(pid) for pid in (task / "children").read_text().split()])
                found += below
        return [psutil.Process(pid) for pid in found]
    except (OSError, ValueError, psutil.Error):
        return process.children(recursive=True)


def _spent_s() -> tuple[float, float] | None:
    """CPU seconds of the cores that this process may use, and of this process and its children."""
    try:
        by_core, own = psutil.cpu_times(percpu=True), psutil.Process()
        ours = os.sched_getaffinity(0) if sys.platform == "linux" else range(len(by_core))
        used = [times for core, times in enumerate(by_core) if core in ours]
        whole = sum(getattr(times, kind, 0.0) for times in used for kind in _BUSY_KINDS)
        spent = sum(own.cpu_times()[:4])
        for child in _children(own):
            with suppress(psutil.Error):
                spent += sum(child.cpu_times()[:2])
    except (psutil.Error, OSError):
        return None
    return float(whole), float(spent)
