"""The test of non-inferiority on rows, and the metrics that use it."""

from __future__ import annotations

import numpy as np
import pytest

from flatout.measure.row_proof import check_means, check_shares, level_of
from flatout.shrinking.metric import SCORE, SQUARED, TRUTH, WRONG, Metric, metrics_of


def points(lost: float) -> str:
    return f"{100 * lost:.2g} points"


def test_no_flipped_row_still_needs_enough_rows() -> None:
    """Of n rows without a difference, Tango's bound is z^2 / (n + z^2)."""
    few, many = (check_shares(0, 0, rows, 0.005, 1, points) for rows in (360, 2000))
    assert not few.passed and few.is_open and few.figures["upper_bound"] == pytest.approx(3.84 / 363.84, rel=0.01)
    assert many.passed and many.power > 0.99
    assert "these rows can show 1." in few.why and check_shares(0, 0, 360, few.figures["margin_shown"], 1, points).passed


def test_the_rows_that_it_takes_are_enough() -> None:
    found = check_shares(2, 1, 400, 0.01, 1, points)
    needed = int(found.figures["rows_needed"])
    share = round(1.5 * needed / 400)
    assert found.is_open and check_shares(share, share, needed, 0.01, 1, points).power >= 0.75


def test_a_loss_above_the_margin_is_said_with_its_bound() -> None:
    found = check_shares(150, 20, 5000, 0.005, 1, points)
    assert not found.passed and not found.is_open and found.why.startswith("loses 2.6 points, at least")


def test_the_bound_covers_as_often_as_it_says() -> None:
    """A candidate that loses exactly the margin passes in 2.5% of the draws, at the level of the first look."""
    draw = np.random.default_rng(0)
    margin, rows = 0.02, 2000
    worse, better = draw.binomial(rows, 0.035, 400), draw.binomial(rows, 0.015, 400)
    passed = [check_shares(int(w), int(b), rows, margin, 1, points).passed for w, b in zip(worse[:400], better, strict=True)]
    assert 0.005 < np.mean(passed) < 0.055


def test_looks_share_the_error() -> None:
    assert sum(level_of(look) for look in range(1, 2000)) == pytest.approx(0.05, rel=1e-3)
    first, fifth = (check_shares(6, 4, 3000, 0.005, look, points) for look in (1, 5))
    assert first.figures["upper_bound"] < fifth.figures["upper_bound"]


def test_means_of_few_rows_prove_nothing() -> None:
    assert not check_means(np.zeros(10), 0.01, 1, points).passed
    assert check_means(np.random.default_rng(0).normal(0, 0.01, 500), 0.01, 1, points).passed


def test_the_auc_of_both_models_is_compared_on_the_same_rows() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 2, 3000).astype(float)
    score = truth + draw.normal(0, 1.0, 3000)
    metric = next(one for one in metrics_of("binary", 0.5) if one.name == "auc")
    source = {SCORE: score, TRUTH: truth, WRONG: np.zeros(3000)}
    near, far = ({**source, SCORE: score + draw.normal(0, noise, 3000)} for noise in (0.01, 1.0))
    assert metric.check(source, near, 1).passed and not metric.check(source, far, 1).passed
    assert metric.of(source) == pytest.approx(0.76, abs=0.02)


def test_the_margin_of_an_error_is_in_percent_of_its_root() -> None:
    draw = np.random.default_rng(0)
    source = {SQUARED: draw.chisquare(1, 200_000)}
    slightly, far = ({SQUARED: source[SQUARED] * (1 + share) ** 2} for share in (0.002, 0.02))
    metric = Metric("rmse", "percent", 0.5)
    assert metric.check(source, slightly, 1).passed
    found = metric.check(source, far, 1)
    assert not found.passed and found.why.startswith("loses 2%")
