"""The interval of one more training: how often it holds, and whose spread counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flatout.tuning.study.intervals import of_the_mean, of_the_next


@pytest.mark.parametrize("akin", [0, 3])
def test_one_more_lies_inside_as_often_as_stated(akin: int) -> None:
    drawn = np.random.default_rng(0)
    inside, widths = 0, []
    for _ in range(2000):
        found = of_the_next(drawn.normal(0.9, 0.01, 8).tolist(), [drawn.normal(0.85, 0.01, 3).tolist() for _ in range(akin)])
        inside += found.low <= drawn.normal(0.9, 0.01) <= found.high
        widths.append(found.high - found.low)
    assert 0.935 < inside / 2000 < 0.965
    if akin:  # a spread that is too small by luck is rarer
        alone = [of_the_next(drawn.normal(0.9, 0.01, 8).tolist()) for _ in range(2000)]
        assert np.std(widths) < 0.8 * np.std([one.high - one.low for one in alone])


def test_what_spreads_much_more_does_not_count() -> None:
    steady = [0.90, 0.91, 0.90, 0.91, 0.90, 0.91]
    assert of_the_next(steady, [[0.1, 0.9]]) == of_the_next(steady)
    assert of_the_next(steady, [[0.80, 0.81, 0.80]]) != of_the_next(steady)


@pytest.mark.parametrize("values", [[], [0.5]])
def test_too_few_values_say_nothing(values: list[float]) -> None:
    for found in (of_the_next(values, [[0.1, 0.2]]), of_the_mean(values)):
        assert (found.low, found.high, found.n) == (-math.inf, math.inf, len(values))
        assert not found.excludes_zero
