"""The loop's progress marks: a few attribute writes each, read by the heartbeat thread.

The loop chooses the phase names. Three kinds have a meaning here. Phases in `OWN` contain no waiting for other ranks, so their
times can be compared between ranks. "exchange" is only waiting for others. Phases in `limits.PATIENT_S` may take long without a
mark. All others ("step", "backward" with its overlapped exchange) mix work and waiting. So does the forward pass with split
weights: a rank that enters it late makes the others wait in theirs.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from time import monotonic

OWN = frozenset({"data", "forward", "compute", "optimizer"})
EXCHANGE = "exchange"
SPLIT_FORWARD = "split forward"


class Pulse:
    """Where the loop is. One thread writes without a lock; a reader may see a half-written mark, which is harmless."""

    __slots__ = ("at_step", "count", "phase", "phase_began_s", "spent_s", "step", "step_began_s", "thread")

    def __init__(self, phase: str = "setup") -> None:
        self.thread = threading.get_ident()  # the loop's thread, which need not be the main thread
        self.step, self.phase, self.count = 0, phase, 0
        self.phase_began_s = self.step_began_s = monotonic()
        self.spent_s: defaultdict[str, float] = defaultdict(float)  # seconds by phase since the start
        # step, clock and a copy of `spent_s` at the beginning of this step
        self.at_step: tuple[int, float, dict[str, float]] = (0, self.step_began_s, {})

    def beat(self, step: int, phase: str) -> None:
        """The loop enters `phase` of `step` now."""
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
        """In a phase that mixes work and waiting: this many seconds of it were waiting for other ranks."""
        self.spent_s[EXCHANGE] += seconds
        self.spent_s[self.phase] -= seconds
