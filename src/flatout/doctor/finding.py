"""What was lost and why: one cause, its cost and its remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`cost_ms` of a step are lost to it. What spoils the result costs the whole step: nothing that it computes can be used."""

    id: str
    cost_ms: float
    where: str  # "train.py:41", or "" where no line of the script is to blame
    what: str  # one line in words
    evidence: str
    remedy: str
    short: str = ""  # the remedy in a few words, for the list of what is worth trying
    gain: float | None = None  # on the rate, where it is known better than by taking the cost away
    always: bool = False  # worth saying however little time it costs

    def predicted_gain(self, step_ms: float) -> float:
        if self.gain is not None:
            return self.gain
        return step_ms / max(step_ms - self.cost_ms, 0.02 * step_ms)
