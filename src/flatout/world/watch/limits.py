"""How long no rank may move before it counts as a hang.

Half a minute for short steps, five usual steps for long ones. Some phases are slow by nature: they have their own limits, and
after one of them has ended normally once, twice its duration is allowed.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from flatout.world.watch.records import Record

LEAST_S = 10.0
UNKNOWN_S = 20.0  # before the first step is done: it loads kernels and data
USUAL_STEPS = 5
PATIENT_S = {"evaluation": 20.0, "checkpoint": 20.0, "setup": 300.0, "compile": 600.0}
_KEPT = 50


class StepTimeLimits:
    """Learns from the records of all ranks. `fixed_s` replaces the learned step limit."""

    def __init__(self, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s
        self._steps_s: deque[float] = deque(maxlen=_KEPT)
        self._longest_s: dict[str, float] = {}
        self._before: dict[int, Record] = {}

    def learn(self, record: Record) -> None:
        before = self._before.get(record.rank)
        self._before[record.rank] = record
        if before is None or before.count == record.count:
            return
        steps = record.at_step[0] - before.at_step[0]
        if steps > 0 and before.at_step[0] > 0:  # the first step is not typical
            self._steps_s.append((record.at_step[1] - before.at_step[1]) / steps)
        if before.phase in PATIENT_S:
            self._longest_s[before.phase] = max(self._longest_s.get(before.phase, 0.0), before.phase_s)

    @property
    def usual_step_s(self) -> float | None:
        return median(self._steps_s) if self._steps_s else None

    def limit_s(self, phases: set[str]) -> float:
        """The limit while ranks are in these phases."""
        usual_s = self.usual_step_s
        learned_s = UNKNOWN_S if usual_s is None else max(LEAST_S, USUAL_STEPS * usual_s)
        least_s = learned_s if self._fixed_s is None else self._fixed_s
        patient_s = [max(PATIENT_S[phase], 2 * self._longest_s.get(phase, 0.0)) for phase in phases & PATIENT_S.keys()]
        return max([least_s, *patient_s])
