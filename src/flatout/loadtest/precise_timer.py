"""A timer of microseconds for the event loop. uvloop's own are of whole milliseconds: many servers answer faster."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NONBLOCKING = os.O_NONBLOCK


class _Spec(ctypes.Structure):
    _fields_ = (("every_s", ctypes.c_long), ("every_ns", ctypes.c_long), ("at_s", ctypes.c_long), ("at_ns", ctypes.c_long))


class PreciseTimer:
    """Calls `wake` once at a time of `time.monotonic`. By Linux's timerfd; elsewhere by the loop's timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop, self._wake = loop, wake
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._file = -1
        if self._libc is not None:
            self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCKING | os.O_CLOEXEC)
        if self._file >= 0:
            self._spec = _Spec()
            self._at = ctypes.byref(self._spec)
            loop.add_reader(self._file, self._expired)

    def set(self, at_s: float) -> None:
        if self._file < 0:
            self._loop.call_later(max(0.0, at_s - time.monotonic()), self._wake)
            return
        whole_s = int(at_s)
        self._spec.at_s = whole_s
        self._spec.at_ns = int((at_s - whole_s) * 1e9) or 1  # 0 and 0 would switch it off
        assert self._libc is not None
        self._libc.timerfd_settime(self._file, _ABSOLUTE, self._at, None)

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _expired(self) -> None:
        try:
            os.read(self._file, 8)  # otherwise the loop would call again
        except BlockingIOError:  # it was set anew since
            return
        self._wake()
