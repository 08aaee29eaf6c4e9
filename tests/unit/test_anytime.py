"""E-processes: held to exact enumeration, to published values, and to simulation."""

from __future__ import annotations

import itertools
import math
from math import comb

import numpy as np
import pytest

from flatout.base.errors import UsageError
from flatout.measure.anytime.power import needed
from flatout.measure.anytime.rates import log_e_of_share, share_interval
from flatout.measure.anytime.two_arms import ArmCounts, ShareNull, TwoArmTest, log_factor, log_mean

NULLS = {
    "no worse": ShareNull(),
    "0.1 allowed": ShareNull(1.0, 0.1),
    "twice allowed": ShareNull(2.0, 0.0),
    "bad": ShareNull(1.0, 0.15, above=True),
}


def probability(hits: int, n: int, share: float) -> float:
    return comb(n, hits) * share**hits * (1 - share) ** (n - hits)


@pytest.mark.parametrize("null", NULLS.values(), ids=NULLS)
def test_the_mean_of_one_look_is_at_most_one_under_every_pair_of_the_null(null: ShareNull) -> None:
    """All outcomes of 5 and 3 requests, added up exactly."""
    outcomes = np.array(list(itertools.product(range(6), range(4)))).T[:, :, None]
    counts = ArmCounts(*(np.broadcast_to(one, outcomes.shape[1:]) for one in (5, outcomes[0], 3, outcomes[1])))
    factors = np.exp(log_factor(null, counts, 0.3, null.outside(0.3)))  # by outcome, and by pair outside of the null
    largest = 0.0
    for stable, canary in itertools.product(np.linspace(0.02, 0.98, 25), repeat=2):
        if null.holds(stable, canary):
            chances = [
                probability(int(hits), 5, stable) * probability(int(more), 3, canary) for hits, more in outcomes[:, :, 0].T
            ]
            means = np.array(chances) @ factors
            assert (means <= 1 + 1e-9).all()
            largest = max(largest, means.max())
    assert largest > 0.97, "a test that gives its evidence away"


def test_the_mean_stays_at_most_one_after_looks_that_choose_by_earlier_ones() -> None:
    """Three looks of 2 and 1 requests, all 6**3 outcomes; the second look's bets depend on the first one's outcome."""
    for stable, canary in ((0.2, 0.2), (0.5, 0.5), (0.7, 0.6)):
        looks = list(itertools.product(range(3), range(2)))
        outcomes = np.array(list(itertools.product(looks, repeat=3)))  # by outcome, look, arm
        test, chances = TwoArmTest(ShareNull(), (len(outcomes),)), np.ones(len(outcomes))
        for look in range(3):
            hits, more = outcomes[:, look].T
            test.look(ArmCounts(np.full(len(hits), 2), hits, np.ones(len(hits)), more))
            chances *= [probability(int(one), 2, stable) * probability(int(other), 1, canary)
                        for one, other in zip(hits, more, strict=True)]  # fmt: skip
        assert chances.sum() == pytest.approx(1)
        assert chances @ np.exp(test.log_e) <= 1 + 1e-9
        assert test.log_e.max() > 0


def test_published_values_of_the_beta_binomial_mixture() -> None:
    """confseq 0.0.11, test/uniform_boundaries_unittest.cpp: two-sided mixture with v_opt 100, alpha 0.05, g 0.2, h 0.8:
    the best rho is 12.60056; the log supermartingale is -0.6941012 at s 10, v 100 (135 hits of 625), log 20 at s 31.4308."""
    r = 12.60056 - 0.2 * 0.8
    beta = (r / 0.8, r / 0.2)
    assert log_e_of_share(135, 625, 0.2, beta) == pytest.approx(-0.6941012, abs=2e-5)
    assert log_e_of_share(125 + 31.4308, 625, 0.2, beta) == pytest.approx(math.log(20), abs=2e-4)


def test_intervals_hold_at_all_times_together() -> None:
    drawn = np.random.default_rng(3)
    missed = 0
    for _ in range(200):
        hits = np.cumsum(drawn.random(300) < 0.1)
        missed += any(log_e_of_share(hits[n - 1], n, 0.1) >= math.log(20) for n in range(1, 301, 7))
    assert missed <= 10  # 5% of 200
    low, high = share_interval(10, 100)
    assert log_e_of_share(10, 100, low) == pytest.approx(math.log(20), rel=1e-6) and low < 0.1 < high
    assert share_interval(0, 0) == (0.0, 1.0) and share_interval(0, 50)[0] == 0.0 and share_interval(50, 50)[1] == 1.0


def run(null: ShareNull, stable: float, canary: float, looks: int, many: int, seed: int) -> TwoArmTest:
    drawn = np.random.default_rng(seed)
    test = TwoArmTest(null, (many,))
    for _ in range(looks):
        n, m = drawn.integers(50, 600), drawn.integers(1, 40)
        test.look(
            ArmCounts(np.full(many, n), drawn.binomial(n, stable, many), np.full(many, m), drawn.binomial(m, canary, many))
        )
    return test


def test_false_alarms_at_the_edge_of_the_null_stay_below_alpha_with_looks_without_end() -> None:
    edge = ShareNull(1.0, 0.01)
    assert (run(edge, 0.05, 0.06, 120, 600, 5).highest >= math.log(10)).mean() <= 0.1
    shifting = TwoArmTest(ShareNull(), (400,))  # both versions become worse together, as at a peak of traffic
    drawn = np.random.default_rng(6)
    for look in range(80):
        share = 0.02 + 0.1 * (look % 20 > 10)
        shifting.look(
            ArmCounts(np.full(400, 300), drawn.binomial(300, share, 400), np.full(400, 20), drawn.binomial(20, share, 400))
        )
    assert (shifting.highest >= math.log(10)).mean() <= 0.1


def test_the_stated_number_of_requests_suffices_and_is_not_far_too_large() -> None:
    null, threshold = ShareNull(1.0, 0.005), math.log(200)
    found = needed(null, 0.1, 0.15, 0.05, threshold, power=0.9)
    assert found.most is not None and found.usual is not None and found.usual < found.most
    reached = []
    for n in (found.most, found.most // 3):
        drawn = np.random.default_rng(7)
        test, looks = TwoArmTest(null, (300,)), 40
        for _ in range(looks):
            m = n // looks + 1
            stable, canary = drawn.binomial(19 * m, 0.1, 300), drawn.binomial(m, 0.15, 300)
            test.look(ArmCounts(np.full(300, 19 * m), stable, np.full(300, m), canary))
        reached.append((test.highest >= threshold).mean())
    assert reached[0] >= 0.9 > 0.75 > reached[1]
    assert needed(null, 0.1, 0.1, 0.05, threshold).most is None  # a version that is fine is never stopped


def test_no_requests_are_no_evidence_and_state_comes_back() -> None:
    test = TwoArmTest(ShareNull())
    for counts in (ArmCounts(0, 0, 0, 0), ArmCounts(100, 3, 0, 0), ArmCounts(0, 0, 50, 40)):
        test.look(counts)
        assert test.log_e == 0.0 if counts.canary_hits == 0 else np.isfinite(test.log_e)
    again = TwoArmTest(ShareNull())
    again.restore(test.to_json())
    for one in (test, again):
        one.look(ArmCounts(100, 3, 20, 9))
    assert test.log_e == again.log_e > 0
    with pytest.raises(UsageError, match="hits in the canary arm, got 9 of 5"):
        test.look(ArmCounts(10, 1, 5, 9))
    with pytest.raises(UsageError, match="ratio above 0"):
        ShareNull(0.0)


def test_a_mean_of_e_values_is_not_led_by_one_that_is_small() -> None:
    assert log_mean([math.log(100), -50.0], [1.0, 1.0]) == pytest.approx(math.log(50))
    assert log_mean([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]) == pytest.approx(0.0)
