"""What is counted of one version's requests: outcomes, latencies and predictions, in one vector of whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STEPS = 16  # latency steps of 4.4%, so that small factors are whole numbers of steps
_FIRST_S = 1e-5
LATENCIES = 22 * STEPS  # up to 42 s
CLASSES = 32

REQUESTS, FAILED = 0, 1
SLOW = slice(2, 2 + LATENCIES)
PREDICTED = slice(2 + LATENCIES, 2 + LATENCIES + CLASSES)
LABELLED, WRONG = PREDICTED.stop, PREDICTED.stop + 1
MISSES = slice(WRONG + 1, WRONG + 1 + LATENCIES)  # the sizes of errors, where labels are numbers
COMPARED, DIFFERENT, NOT_COPIED = range(MISSES.stop, MISSES.stop + 3)  # a shadow's answers
FIELDS = NOT_COPIED + 1


def empty(shape: tuple[int, ...] = ()) -> Array:
    return np.zeros((*shape, FIELDS), np.int64)


def step_of(seconds: Any) -> Array:
    """The step of a latency; also of the size of an error, whatever its unit."""
    steps = STEPS * np.log2(np.maximum(np.asarray(seconds, np.float64), _FIRST_S) / _FIRST_S)
    return np.minimum(steps.astype(np.int64), LATENCIES - 1)


def step_end_s(step: int) -> float:
    return float(_FIRST_S * 2 ** ((step + 1) / STEPS))


def step_after(step: Any, steps: int, seconds: float) -> Array:
    """The step that is so many steps, or so many seconds, above a step, whichever is more."""
    step = np.asarray(step)
    return np.asarray(np.maximum(step + steps, step_of(_FIRST_S * 2 ** ((step + 1) / STEPS) + seconds) if seconds else 0))


def steps_of_factor(factor: float) -> int:
    """The number of steps that is nearest to a factor, at least one."""
    return max(1, round(STEPS * float(np.log2(factor))))


def add_requests(tally: Array, requests: int, failed: int, seconds: Any) -> None:
    """`seconds`: latencies, of those that did not fail and are alone in their batch."""
    tally[REQUESTS] += requests
    tally[FAILED] += failed
    tally[SLOW] += np.bincount(step_of(seconds), minlength=LATENCIES)
