"""On which cores a turn begins. Threads that hand work to each other are faster on some pairs of cores than on others, and
they stay for seconds where they are: two processes of one script would differ by that alone. So each turn begins elsewhere,
and both trials begin the same turn on the same cores. From there on they run where the system lets them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_FEW = 4  # cores: there is nowhere else to be
_STRIDE = 5  # from turn to turn
_HANDED_TO = "pt_autograd"  # threads of that name go back through a model on a device


def begin_on(turn: int) -> None:
    if sys.platform != "linux":
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < _FEW:
        return
    for at, thread in enumerate([os.getpid(), *_threads()]):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, {cores[(_STRIDE * turn + at) % len(cores)]})
            os.sched_setaffinity(thread, cores)


def _threads() -> list[int]:
    found = []
    for task in sorted(Path("/proc/self/task").iterdir()):
        with suppress(OSError):
            if (task / "comm").read_text().startswith(_HANDED_TO):
                found.append(int(task.name))
    return found
