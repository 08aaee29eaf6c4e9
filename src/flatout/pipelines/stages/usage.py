"""What a command and its processes use: processor time and memory, sampled from outside."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flatout.base.keeper import descendants

_TICKS, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_USER_TIME, _RESIDENT = 11, 1  # fields of /proc/PID/stat after the name, and of statm


class Usage:
    """Of a process and all below it. Between two looks a process may come and go: its time counts once its parent waited."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.cpu_s: float | None = None
        self.memory_bytes: int | None = None

    def look(self) -> None:
        cpu_s, memory, seen = 0.0, 0, False
        for pid in (self._pid, *descendants(self._pid)):
            with suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                cpu_s += sum(map(int, stat[_USER_TIME : _USER_TIME + 4])) / _TICKS
                memory += int(Path(f"/proc/{pid}/statm").read_bytes().split()[_RESIDENT]) * _PAGE_BYTES
                seen = True
        if seen:
            self.cpu_s = max(cpu_s, self.cpu_s or 0.0)
            self.memory_bytes = max(memory, self.memory_bytes or 0)
