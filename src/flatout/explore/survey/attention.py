"""How a thread spent its time: working, waiting for a core, or waiting for files."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_SCHEDULED = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, and nanoseconds waiting for one


@dataclass(frozen=True)
class ThreadTime:
    """Shares of the elapsed time; `queued` is 0 if the system does not report it."""

    working: float
    queued: float

    @property
    def waiting(self) -> float:
        return max(0.0, 1 - self.working - self.queued)


class ThreadWatch:
    """Measures the thread that creates it, from then on."""

    def __init__(self) -> None:
        self._began_s, self._worked_s, self._queued_s = time.perf_counter(), time.thread_time(), _queued_s()

    def attention(self) -> ThreadTime:
        passed_s = max(time.perf_counter() - self._began_s, 1e-9)
        working = min(1.0, (time.thread_time() - self._worked_s) / passed_s)
        return ThreadTime(working, min(1 - working, (_queued_s() - self._queued_s) / passed_s))


def _queued_s() -> float:
    try:
        return int(_SCHEDULED.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def bytes_read() -> int | None:
    """Bytes that this process has read from files so far; None if the system does not count them."""
    import psutil

    counters = getattr(psutil.Process(), "io_counters", None)
    read = None if counters is None else getattr(counters(), "read_chars", None)
    return None if read is None else int(read)
