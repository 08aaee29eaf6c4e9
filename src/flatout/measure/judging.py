"""Is a trial faster than its baseline by more than the noise, and does its first step compute the same?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from flatout.base.units import show_gain
from flatout.measure.standing import TrialResult
from flatout.measure.stats import Comparison, compare, compare_paired

HARMLESS = 0.02  # a change with another benefit may measure this much slower, within the noise


class Rejection(Enum):
    """Why a change was not kept. Code decides by this, never by the words."""

    FAILED = auto()  # the trial crashed, ran out of memory, took too long
    TOO_FEW = auto()  # repeats to compare
    DIFFERENT = auto()  # the first step computes something else
    SLOWER = auto()
    NO_GAIN = auto()  # larger than the noise
    NOT_REPAID = auto()  # its one-off cost is more than it saves
    UNPROVEN = auto()  # its losses are worse, or noise hides whether they are


COMPUTES_THE_SAME = frozenset({Rejection.SLOWER, Rejection.NO_GAIN, Rejection.NOT_REPAID})


@dataclass(frozen=True)
class ComparedTimes:
    """Seconds of a trial and of its baseline. `paired`: both were timed in turns, so that other load affects both."""

    now_s: Sequence[float]
    was_s: Sequence[float]
    paired: bool


def times_of(trial: TrialResult, stands: TrialResult) -> ComparedTimes:
    """Compare with the baseline timed in turns with the trial, if there is one; else with the current state's times."""
    if trial.against_s:
        return ComparedTimes(trial.steps_s, trial.against_s, len(trial.against_s) == len(trial.steps_s))
    return ComparedTimes(trial.steps_s, stands.steps_s, paired=False)


def time_ratio(times: ComparedTimes, margin: float) -> Comparison:
    """Ratio of seconds: below 1 is faster."""
    how = compare_paired if times.paired else compare
    return how(times.now_s, times.was_s, prefer="min", margin=margin)


def speed_up(times: ComparedTimes, margin: float) -> Comparison:
    """Ratio of rates: 2 is twice as fast."""
    found = time_ratio(times, margin)
    return Comparison(1 / found.ratio, 1 / found.high, 1 / found.low, found.better, found.n)


@dataclass(frozen=True)
class Judgement:
    """`rejection`: None if the change is kept. `speed`: None if nothing could be timed."""

    rejection: Rejection | None
    why: str
    speed: Comparison | None = None

    @property
    def kept(self) -> bool:
        return self.rejection is None


def judge(
    trial: TrialResult,
    times: ComparedTimes,
    *,
    margin: float,
    unless_slower: bool = False,
    is_checked: bool = True,
    worse: str = "slower",
) -> Judgement:
    """Keep a trial that is faster by more than `margin` and the noise; with `unless_slower` also if no difference is clear.
    `is_checked`: keep it only if the check of its first step passed. `worse`: the word for more of what was compared."""
    if trial.failure:
        return Judgement(Rejection.FAILED, f"{trial.failure}: {trial.why}")
    speed = speed_up(times, margin)
    if is_checked and (trial.check is None or not trial.check["passed"]):
        why = trial.check["why"] if trial.check else "its first step was not checked"
        return Judgement(Rejection.DIFFERENT, f"not the same: {why}", speed)
    if speed.better is False:
        gain = f"{worse}: {speed.ratio:.2f}x" if speed.ratio >= 0.1 else show_gain(speed.ratio)
        return Judgement(Rejection.SLOWER, gain, speed)
    if speed.better is None and not (unless_slower and speed.ratio > 1 - HARMLESS):
        interval = f"[{speed.low:.2f}, {speed.high:.2f}], n={speed.n}"
        return Judgement(Rejection.NO_GAIN, f"no gain above the noise: {show_gain(speed.ratio)} {interval}", speed)
    return Judgement(None, "", speed)
