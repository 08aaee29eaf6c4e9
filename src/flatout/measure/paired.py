"""The second part of a proof: many steps on the same data. Is the candidate's loss no worse than the baseline's, by a margin?

Non-inferiority test, one-sided 95%: the upper bound of the mean paired difference must be below the margin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flatout.base.errors import UsageError
from flatout.measure.stats import Values

MARGIN_SHARE = 0.01
MIN_POWER = 0.8
NOT_ENOUGH = "not enough evidence"  # prefix of a verdict that more steps may settle
# Consecutive steps share weights, so their differences may be correlated. Means of ten blocks, each longer than the
# correlation, are nearly independent, and for ten values the t quantile is one number, whatever n. Measured in runs that
# differ in dropout only (an MLP and a GPT, 30 to 120 steps): a correlation of -0.01 to 0.04 between steps, and the bound
# missed in 0.5% to 7% of the draws (5% expected). At a correlation of 0.8 and blocks of 5 steps it would be 15%.
_BLOCKS = 10
_T_BLOCKS, _T_HALF = 1.833, 2.132  # 95% quantiles of Student's t with 9 and 4 degrees of freedom, from the table
_ENOUGH = 2.7  # a margin of this many standard errors gives a power of 0.8
MIN_STEPS = 2 * _BLOCKS
_LITTLE = 1e-4  # of the loss: smaller differences are not worth showing
_TEST = "one-sided 95% t test of non-inferiority on the means of ten blocks of paired differences"


@dataclass(frozen=True)
class PairedCheck:
    """`power`: how likely a truly equal candidate passes, given the measured noise."""

    passed: bool
    why: str
    test: str
    margin: float
    n: int
    power: float
    figures: dict[str, float] = field(default_factory=dict)


def check_losses(
    reference: Sequence[Sequence[float]], candidate: Sequence[float], *, margin_share: float = MARGIN_SHARE
) -> PairedCheck:
    """`reference`: losses of repeats of the baseline; `candidate`: losses of one run, step by step on the same data.

    The margin is `margin_share` of the baseline's loss, or the typical difference of two of its repeats if that is larger.
    """
    repeats, arm = _checked(reference, candidate)
    n, spread = len(arm), _spread(repeats)
    margin = max(margin_share * float(np.abs(repeats).mean()), math.sqrt(2) * spread)
    if doubt := _unusable(repeats, arm, margin):
        return PairedCheck(False, doubt, _TEST, margin if math.isfinite(margin) else 0.0, n, 0.0)
    blocks = _block_means(arm - repeats.mean(axis=0))
    figures = _figures(repeats, arm, blocks, margin_share)
    # blocks can't show a shift of a whole run; repeats can
    power = min(_power(margin, figures["standard_error"]), _normal(margin, spread * math.sqrt(1 + 1 / len(repeats))))
    wrong = _diverges(repeats, arm, margin) or _verdict(figures, blocks, margin, power)
    if wrong is None and (repeats == arm).all():
        return PairedCheck(True, f"{n} paired steps have identical losses", _TEST, margin, n, power, figures)
    return PairedCheck(wrong is None, wrong or _agreement(figures, margin, n, power), _TEST, margin, n, power, figures)


def _checked(reference: Sequence[Sequence[float]], candidate: Sequence[float]) -> tuple[Values, Values]:
    lengths = sorted({len(candidate), *map(len, reference)})
    if not len(reference) or len(lengths) != 1 or not lengths[0]:
        raise UsageError(
            f"paired losses need at least one repeat of the baseline, each as long as the candidate; got {len(reference)} "
            f"repeats with lengths {lengths}"
        )
    return np.asarray(reference, dtype=np.float64), np.asarray(candidate, dtype=np.float64)


def _unusable(repeats: Values, arm: Values, margin: float) -> str | None:
    if not np.isfinite(repeats).all():
        return f"{NOT_ENOUGH}: some losses of the baseline are not finite"
    if not np.isfinite(arm).all():
        first = int(np.flatnonzero(~np.isfinite(arm))[0])
        return f"the loss is {arm[first]} at step {first + 1} of {len(arm)}"
    if not margin:
        return f"{NOT_ENOUGH}: all losses of the baseline are 0, so there is no margin"
    if len(arm) < MIN_STEPS:
        return f"{NOT_ENOUGH}: {len(arm)} paired steps, at least {MIN_STEPS} are needed"
    return None


def _figures(repeats: Values, arm: Values, blocks: Values, margin_share: float) -> dict[str, float]:
    difference, error = float(blocks.mean()), float(blocks.std(ddof=1)) / math.sqrt(_BLOCKS)
    # more steps also shrink the noise of the repeats: then only the share of the loss remains as margin
    goal = margin_share * float(np.abs(repeats).mean()) / _ENOUGH
    return {
        "reference_loss": float(repeats.mean()),
        "candidate_loss": float(arm.mean()),
        "difference": difference,
        "lower_bound": difference - _T_BLOCKS * error,
        "upper_bound": difference + _T_BLOCKS * error,
        "standard_error": error,
        "repeat_spread": _spread(repeats),
        "repeats": float(len(repeats)),
        "steps_needed": float(max(MIN_STEPS, math.ceil(len(arm) * (error / goal) ** 2))),
    }


def _spread(repeats: Values) -> float:
    """Standard deviation of a whole run's mean loss."""
    return float(repeats.mean(axis=1).std(ddof=1)) if len(repeats) > 1 else 0.0


def _block_means(differences: Values) -> Values:
    return np.array([block.mean() for block in np.array_split(differences, _BLOCKS)])


def _diverges(repeats: Values, arm: Values, margin: float) -> str | None:
    last = float(np.array_split(arm, _BLOCKS)[-1].mean())
    highest = float(repeats.max())
    if last > highest + margin:
        return f"diverges: the loss is {last:.4g} at the end, higher than any loss of the baseline (at most {highest:.4g})"
    return None


def _verdict(figures: dict[str, float], blocks: Values, margin: float, power: float) -> str | None:
    loss, lower, upper = figures["reference_loss"], figures["lower_bound"], figures["upper_bound"]
    if lower > margin:
        return (
            f"the loss is worse by {_of(figures['difference'], loss)}, at least by {_of(lower, loss)}; "
            f"margin {_of(margin, loss)}"
        )
    late = blocks[_BLOCKS // 2 :]
    least = float(late.mean() - _T_HALF * late.std(ddof=1) / math.sqrt(len(late)))
    if least > margin:
        return f"the loss drifts: worse by {_of(float(late.mean()), loss)} in the second half; margin {_of(margin, loss)}"
    if power < MIN_POWER:
        return (
            f"{NOT_ENOUGH}: with this noise an equal candidate would pass {power:.0%} of the time, {MIN_POWER:.0%} is "
            f"required: about {figures['steps_needed']:.0f} steps are needed"
        )
    if not upper < margin:
        return f"not shown to be as good: the loss may be worse by {_of(upper, loss)}; margin {_of(margin, loss)}"
    return None


def _agreement(figures: dict[str, float], margin: float, n: int, power: float) -> str:
    loss, difference = figures["reference_loss"], figures["difference"]
    lower, upper = figures["lower_bound"], figures["upper_bound"]
    if max(-lower, upper) < _LITTLE * abs(loss):
        said = f"differs by less than {_LITTLE:.2%}"
    elif upper < 0:
        said = f"is better by {_of(-difference, loss)}, at least by {_of(-upper, loss)}"
    else:
        side = "worse" if difference > 0 else "better"
        said = f"is {side} by {_of(abs(difference), loss)}, at most {_of(upper, loss)} worse (95%)"
    return f"{n} paired steps agree: loss {said}; margin {_of(margin, loss)}, power {power:.0%}"


def _of(difference: float, loss: float) -> str:
    """In percent, unless positive and negative losses nearly cancel."""
    return f"{100 * difference / abs(loss):.2g}%" if abs(difference) < 10 * abs(loss) else f"{difference:.3g}"


def _power(margin: float, error: float) -> float:
    """Power of the t test: how often mean + t * error stays below the margin if both are drawn again from the measured noise.

    The error is estimated from ten blocks, so it follows a chi distribution; averaging over that needs no table.
    """
    freedom = _BLOCKS - 1
    guess = np.linspace(0.005, 3.0, 600)  # estimated error over the true one
    weight = np.exp((freedom - 1) * np.log(guess) - freedom * guess**2 / 2)
    passes = np.array([_normal(margin - _T_BLOCKS * g * error, error) for g in guess])
    return float((weight * passes).sum() / weight.sum())


def _normal(distance: float, deviation: float) -> float:
    """P(noise < distance)."""
    if not deviation:
        return 1.0 if distance > 0 else 0.0
    return 0.5 * math.erfc(-distance / deviation / math.sqrt(2))
