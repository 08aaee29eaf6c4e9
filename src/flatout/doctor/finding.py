"""One cause of lost time, with its cost and its fix."""

from __future__ import annotations

from dataclasses import dataclass

WRONG, KEEPS, CHANGES = "wrong", "keeps", "changes"
"""What a finding is about: results that are wrong; time, with a remedy that keeps the training as it is; or time, with one that
changes it."""


@dataclass(frozen=True)
class Finding:
    """`cost_ms`: time lost per step."""

    id: str
    cost_ms: float
    where: str  # "train.py:41", or "" if no line of the script causes it
    what: str  # one line, shown as the finding's title
    evidence: str
    remedy: str
    short: str = ""  # the remedy in a few words, for the list of expected speed-ups
    gain: float | None = None  # expected speed-up, if known better than from `cost_ms`
    always: bool = False  # reported however small its cost
    about: str = KEEPS
    estimate: bool = False  # `cost_ms` rests on a gain that was measured on other machines

    def predicted_gain(self, step_ms: float) -> float:
        if self.gain is not None:
            return self.gain
        return step_ms / max(step_ms - self.cost_ms, 0.02 * step_ms)
