"""Samples the line that a thread executes every few milliseconds, during windows only."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from pathlib import Path

import torch

from flatout.doctor import where
from flatout.doctor.observing.writing import is_write
from flatout.doctor.trace import ThreadSample

_PERIOD_S = 0.003
_SWITCH_S = 0.0001  # otherwise a thread in pure Python is only sampled where it releases the GIL
_TORCH = str(Path(torch.__file__).parent)


class StackSampler:
    def __init__(self, thread: int, period_s: float = _PERIOD_S) -> None:
        self.samples: list[ThreadSample] = []
        self.waiting = False  # the observer itself waits for the device: that is no line of the script
        self._thread, self._period_s = thread, period_s
        self._stop = threading.Event()
        self._switched_s = sys.getswitchinterval()
        self._worker = threading.Thread(target=self._look, name="flatout sampler", daemon=True)

    def start(self) -> None:
        self._switched_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_S, self._switched_s))
        self._worker.start()

    def stop(self) -> None:
        if not self._stop.is_set():
            sys.setswitchinterval(self._switched_s)
        self._stop.set()
        self._worker.join(1.0)

    def _look(self) -> None:
        while not self._stop.wait(self._period_s):
            at = time.time_ns()
            frame = sys._current_frames().get(self._thread)
            if frame is None:
                return
            own = None if self.waiting else next(where.own_frames(frame), None)
            line = "" if own is None else where.place(own.f_code.co_filename, own.f_lineno)
            writes = own is not None and is_write(linecache.getline(own.f_code.co_filename, own.f_lineno))
            in_torch = frame.f_code.co_filename.startswith(_TORCH)
            self.samples.append(ThreadSample(at, line, in_torch, time.time_ns() - at, writes))
            del frame, own  # a frame keeps all local variables alive
