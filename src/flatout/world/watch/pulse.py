"""What the loop touches: a few attribute writes for each mark, read by the heartbeat thread whenever it wakes.

Phases are words of the loop's own choosing. Three kinds mean something here: those of `OWN` hold no waiting for others, so
their seconds can be compared between ranks; "exchange" is nothing but waiting for others; the ones of `limits.PATIENT_S` may
take long without a mark. Everything else ("step", "backward" with its overlapped exchange) is some of each, the forward of
split weights too: whoever comes to it late makes the others wait in theirs.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from time import monotonic

OWN = frozenset({"data", "forward", "compute", "optimizer"})
EXCHANGE = "exchange"
SPLIT_FORWARD = "split forward"


class Pulse:
    """Where the main thread is. Written without a lock by one thread, so a reader may see a mark half made: harmless."""

    __slots__ = ("at_step", "count", "phase", "phase_began_s", "spent_s", "step", "step_began_s", "thread")

    def __init__(self, phase: str = "setup") -> None:
        self.thread = threading.get_ident()  # of the loop, which need not be the process's main thread
        self.step, self.phase, self.count = 0, phase, 0
        self.phase_began_s = self.step_began_s = monotonic()
        self.spent_s: defaultdict[str, float] = defaultdict(float)  # by phase, since the start
        # step, clock and a copy of `spent_s`, as this step began
        self.at_step: tuple[int, float, dict[str, float]] = (0, self.step_began_s, {})

    def beat(self, step: int, phase: str) -> None:
        """The loop is in `phase` of `step` from now on."""
        now_s = monotonic()
        self.spent_s[self.phase] += now_s - self.phase_began_s
        self.phase = phase
        self.phase_began_s = now_s
        self.count += 1
        if step != self.step:
            self.step = step
            self.step_began_s = now_s
            self.at_step = (step, now_s, dict(self.spent_s))

    def waited(self, seconds: float) -> None:
        """Of the present phase so many seconds went into waiting for other ranks; for phases that are some of each."""
        self.spent_s[EXCHANGE] += seconds
        self.spent_s[self.phase] -= seconds
