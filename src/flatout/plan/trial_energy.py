"""What trials say about energy: joules of a step before and after a change, and how the search chooses by them."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from flatout.base.units import show_joules, show_seconds
from flatout.machine.power_limit import power_limits, why_not_settable
from flatout.measure.judging import ComparedTimes, speed_up, times_of
from flatout.measure.receipt import Entry, Receipt
from flatout.measure.stats import Comparison
from flatout.plan.options import MARGIN
from flatout.plan.situation import Situation
from flatout.plan.trials.reports import TrialReport

ENERGY = "energy"


def joules_of(trial: TrialReport, stands: TrialReport) -> ComparedTimes | None:
    """Joules of a step, compared as `times_of` compares seconds; None: one of them has none, or they are from two meters."""
    if not trial.steps_j or trial.meter != (stands.meter or trial.meter):
        return None
    if trial.against_j:
        return ComparedTimes(trial.steps_j, trial.against_j, len(trial.against_j) == len(trial.steps_j))
    return ComparedTimes(trial.steps_j, stands.steps_j, paired=False) if stands.steps_j and not trial.against_s else None


def compared(prefer: str, trial: TrialReport, stands: TrialReport) -> tuple[ComparedTimes, bool]:
    """What a trial is judged by, and whether that is energy: where nothing was metered it is time."""
    joules = joules_of(trial, stands) if prefer == ENERGY else None
    return (times_of(trial, stands), False) if joules is None else (joules, True)


def with_energy(entry: Entry, trial: TrialReport, stands: TrialReport) -> Entry:
    """The entry with its speed, whatever it was judged by, and its energy."""
    joules, times = joules_of(trial, stands), times_of(trial, stands)
    if joules is None:
        return entry
    less, speed = speed_up(joules, MARGIN), speed_up(times, MARGIN) if times.now_s and times.was_s else None
    counts = min(len(joules.now_s), len(joules.was_s)) > 1
    return replace(
        entry,
        measured=None if speed is None else speed.ratio,
        low=None if speed is None else speed.low,
        high=None if speed is None else speed.high,
        step_j=median(joules.now_s),
        against_j=median(joules.was_s),
        less=less.ratio,
        less_low=less.low if counts else None,
        less_high=less.high if counts else None,
    )


def energy_words(joules: ComparedTimes, less: Comparison) -> str:
    """ "12% less energy (1.43 J a step, was 1.62 J)"."""
    share = 1 - 1 / less.ratio
    words = f"{share:.0%} less energy" if share >= 0 else f"{-share:.0%} more energy"
    return f"{words} ({show_joules(median(joules.now_s))} a step, was {show_joules(median(joules.was_s))})"


def why_not_repaid(joules: ComparedTimes, step_s: float, once_s: float, steps_left: float) -> str:
    """Of a change that costs time at the start: that time is taken to use as much power as the steps before it."""
    saved_j = (median(joules.was_s) - median(joules.now_s)) * steps_left
    once_j = once_s * median(joules.was_s) / max(step_s, 1e-9)
    if saved_j >= once_j:
        return ""
    costs = f"about {show_joules(once_j)} at start ({show_seconds(once_s)})"
    return f"it uses {costs} and saves only {show_joules(max(0.0, saved_j))}"


def notes_on_energy(s: Situation, receipt: Receipt, why_no_meter: str) -> list[str]:
    """What could not be done about energy, and what the user could do."""
    if s.prefer != ENERGY or receipt.step_s is None:
        return []
    if receipt.step_j is None:
        return [f"prefer=energy: settings were chosen by time, because energy can't be measured here: {why_no_meter}"]
    limits = power_limits(s.device)
    if "power_limit" in s.pins or limits is None or not (why := why_not_settable(s.device)):
        return []
    watts = receipt.step_j / receipt.step_s
    lower = max(limits.least_w, round(0.8 * watts, -1))
    return [
        f"power_limit was not tried: {why}. A step draws {watts:.0f} W of {limits.now_w:.0f} W. With the right to set it, "
        f"`sudo nvidia-smi -pl {lower:.0f}` and the same command again show what a lower limit saves."
    ]
