"""Chooses the cores on which a turn of a trial starts. Threads that pass work to each other are faster on some pairs of cores,
and the system leaves them there for seconds, so two processes of one script could differ by that alone. Each turn therefore
starts on other cores, the same for both trials. After the start, the system may move the threads."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_FEW = 4  # cores: with fewer there is no choice
_STRIDE = 5  # cores to move on from turn to turn
_HANDED_TO = "pt_autograd"  # name of the threads that run the backward pass on a device


def begin_on(turn: int) -> None:
    if sys.platform != "linux":
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < _FEW:
        return
    for at, thread in enumerate([os.getpid(), *_threads()]):
        with suppress(OSError):  # the thread has ended
            os.sched_setaffinity(thread, {cores[(_STRIDE * turn + at) % len(cores)]})
            os.sched_setaffinity(thread, cores)


def _threads() -> list[int]:
    found = []
    for task in sorted(Path("/proc/self/task").iterdir()):
        with suppress(OSError):
            if (task / "comm").read_text().startswith(_HANDED_TO):
                found.append(int(task.name))
    return found
