"""Watches at log points whether other processes take the cores that a run computes on, and says what helps.

Every look covers the seconds since the last one. It counts what other processes used: compiling, evaluating and saving, which
this process does, are no false alarm.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from flatout.base.events import EventLog
from flatout.engine.settings import Settings
from flatout.machine.others_work import CpuUse, OthersWork, waited_s
from flatout.machine.threads import counts_to_try, time_small_step

_EVERY_S = 3.0
_IN_A_ROW = 2  # busy looks before it is said, quiet ones before it is over
_QUIET_IN_A_ROW = 20
_WAITED = 0.1  # of the time, summed over the threads of this process
_WORTH_SAYING, _WORTH_SWITCHING = 1.2, 1.5


class SharedCores:
    def __init__(
        self,
        settings: Settings,
        events: EventLog,
        *,
        alone: bool = True,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`alone`: one process trains. Of several, each would be other work to the rest, so they are not watched."""
        self._events, self._every_s, self._clock = events, every_s, clock
        self._watches = alone and settings.device_kind == "cpu"
        # threads change how sums are rounded, and compiled code has their number built in
        self._may_switch = not settings.deterministic and settings.compile == "off"
        self._busy = self._quiet = 0
        self._is_said = False
        self._planned: int | None = None  # to go back to
        if self._watches:
            self._start_look()

    def look(self) -> None:
        """At a log point. Does nothing most of the time."""
        if not self._watches or self._clock() - self._began_s < self._every_s:
            return
        used, waited = self._others.use(), waited_s()
        taken = None if waited is None or self._waited is None else waited - self._waited
        if used is not None:
            self._note(used, taken, self._clock() - self._began_s)
        self._start_look()

    def _start_look(self) -> None:
        self._began_s, self._others, self._waited = self._clock(), OthersWork(), waited_s()

    def _note(self, used: CpuUse, waited: float | None, past_s: float) -> None:
        if used.is_busy and (waited is None or waited >= _WAITED * past_s):
            self._busy, self._quiet = self._busy + 1, 0
            if self._busy >= _IN_A_ROW and not self._is_said:
                self._is_said = True
                self._say(used)
        elif not used.is_busy:
            self._busy, self._quiet = 0, self._quiet + 1
            if self._is_said and self._quiet >= _QUIET_IN_A_ROW:
                self._is_said = False
                self._go_back()

    def _say(self, used: CpuUse) -> None:
        threads, busy = torch.get_num_threads(), f"other processes use {used.in_words()}"
        times = time_small_step(counts_to_try(threads)) if threads > 1 else None
        best = threads if times is None else times.fastest(busy=True)
        if times is None or best == threads or times.gain(best) < _WORTH_SAYING:
            self._degraded(threads, f"{busy}: steps wait for a core")
            return
        words, gain = "1 thread" if best == 1 else f"{best} threads", f"{times.gain(best):.1f}x"
        if self._may_switch and times.gain(best) >= _WORTH_SWITCHING:
            self._planned = threads
            torch.set_num_threads(best)
            self._degraded(best, f"{busy}; {words} instead of {threads} from here on: a small step is {gain} as fast")
        else:
            how = f"stop the run and start it again with --set threads={best}, and it resumes"
            self._degraded(threads, f"{busy}; with {words} training may be up to {gain} as fast: {how}")

    def _go_back(self) -> None:
        if self._planned is not None:
            torch.set_num_threads(self._planned)
            self._degraded(self._planned, f"other processes left the cores: {self._planned} threads again, as planned")
            self._planned = None

    def _degraded(self, threads: int, why: str) -> None:
        self._events.emit("degraded", what="threads", value=threads, why=why)
