"""Stacks of a process whose Python is blocked: C code that holds the interpreter lock lets no Python thread answer.

`faulthandler`'s timer thread needs no lock. Every heartbeat postpones the timer; without heartbeats it writes all stacks to
unnamed shared memory, which another process of the same user and host can read. Nothing is left on disk.
A process has only one such timer: to use `faulthandler.dump_traceback_later` yourself, set `stacks=False`.
"""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress

from flatout.world.watch.process import ProcessIdentity
from flatout.world.watch.stacks import Stack, parse_dump


class Dumps:
    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self.file: int | None = os.memfd_create("flatout-stacks") if hasattr(os, "memfd_create") else None

    def put_off(self) -> None:
        if self.file is None:
            return
        if os.fstat(self.file).st_size:  # Python was blocked for a while and runs again
            os.ftruncate(self.file, 0)
            os.lseek(self.file, 0, os.SEEK_SET)
        faulthandler.dump_traceback_later(self._after_s, file=self.file)

    def close(self) -> None:
        if self.file is not None:
            faulthandler.cancel_dump_traceback_later()
            os.close(self.file)
            self.file = None


class NoDumps:
    file: int | None = None

    def put_off(self) -> None:
        pass

    def close(self) -> None:
        pass


def read_dump(process: ProcessIdentity, file: int | None, thread: int) -> Stack | None:
    """The stacks that a blocked process on this host wrote; None if there are none or they can't be read."""
    if file is None:
        return None
    with suppress(OSError, ValueError), open(f"/proc/{process.pid}/fd/{file}", encoding="utf-8", errors="replace") as dump:
        return parse_dump(dump.read(), thread)
    return None
