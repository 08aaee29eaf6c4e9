"""A gate's verdicts on costs that are known: how often it errs, what it takes, slices, floors."""

from __future__ import annotations

import numpy as np
import pytest

from flatout.pipelines.gate.checks import FAIL, NO_VERDICT, PASS, above_floor, compared, slices_of
from flatout.shrinking.metric import LOSS, SCORE, SQUARED, TRUTH, WRONG, Costs, Metric

ACCURACY = Metric("accuracy", "points", 0.5)


def pair(rows: int, regression: float, seed: int, flips: float = 0.04) -> tuple[Costs, Costs]:
    """New and old: wrong in 10% of rows, and in `flips` of the rows one of both alone; the new one in `regression` more."""
    drawn = np.random.default_rng(seed)
    old = (drawn.random(rows) < 0.1).astype(np.float64)
    other = drawn.random(rows)
    new = old.copy()
    new[(old == 0) & (other < (flips / 2 + regression) / 0.9)] = 1.0
    new[(old == 1) & (other < flips / 2 / 0.1)] = 0.0
    return {WRONG: new}, {WRONG: old}


def verdicts(rows: int, regression: float, times: int = 120) -> list[str]:
    return [compared(ACCURACY, *pair(rows, regression, seed), "", 1, 1).verdict for seed in range(times)]


def test_an_equal_model_hardly_ever_fails_and_passes_where_rows_suffice() -> None:
    assert verdicts(20_000, 0.0).count(FAIL) <= 8
    assert verdicts(20_000, 0.0).count(PASS) >= 96  # a power of 80%


def test_a_regression_of_a_point_is_not_passed() -> None:
    found = verdicts(12_000, 0.01)
    assert found.count(PASS) <= 6 and found.count(FAIL) >= 96


def test_few_rows_give_no_verdict_and_say_how_many_it_takes() -> None:
    found = compared(ACCURACY, *pair(300, 0.0, 3), "", 1, 1)
    assert found.verdict == NO_VERDICT and found.rows_needed is not None and found.rows_needed > 3_000
    assert f"it takes about {found.rows_needed:,} rows" in found.words
    enough = [compared(ACCURACY, *pair(2 * found.rows_needed, 0.0, seed), "", 1, 1).verdict for seed in range(20)]
    assert enough.count(NO_VERDICT) <= 8


def test_more_comparisons_and_later_looks_ask_for_more() -> None:
    new, old = pair(20_000, 0.0, 1)
    alone, among, later = (compared(ACCURACY, new, old, "", look, count) for look, count in ((1, 1), (1, 20), (3, 1)))
    assert alone.level > later.level > 0 and alone.level > among.level
    assert among.high - among.low > alone.high - alone.low


@pytest.mark.parametrize(
    "metric, costs",
    [
        (Metric("rmse", "percent", 5.0), lambda drawn, n, worse: {SQUARED: drawn.exponential(1.0 + worse, n)}),
        (Metric("loss", "loss", 0.05), lambda drawn, n, worse: {LOSS: drawn.exponential(1.0 + worse, n)}),
    ],
)
def test_errors_and_losses(metric: Metric, costs: object) -> None:
    def made(worse: float) -> Costs:
        return costs(np.random.default_rng(0), 40_000, worse)  # type: ignore[operator, no-any-return]

    same, worse = compared(metric, made(0.0), made(0.0), "", 1, 1), compared(metric, made(0.5), made(0.0), "", 1, 1)
    assert same.verdict == PASS and same.lost == 0
    assert worse.verdict == FAIL and worse.lost > metric.margin and worse.low < worse.lost < worse.high
    assert worse.old is not None
    apart = 100 * (worse.new / worse.old - 1) if metric.unit == "percent" else worse.new - worse.old
    assert worse.lost == pytest.approx(apart)


def test_the_area_under_the_curve() -> None:
    drawn = np.random.default_rng(0)
    truth = (drawn.random(20_000) < 0.3).astype(np.float64)
    good, bad = truth + drawn.normal(0, 0.7, 20_000), truth + drawn.normal(0, 2.0, 20_000)
    metric = Metric("auc", "points", 0.5)
    old = {SCORE: good, TRUTH: truth}
    assert compared(metric, {SCORE: bad, TRUTH: truth}, old, "", 1, 1).verdict == FAIL
    assert compared(metric, {SCORE: good + 1e-9, TRUTH: truth}, old, "", 1, 1).verdict == PASS


def test_slices_by_value_by_quarter_and_what_is_too_small() -> None:
    drawn = np.random.default_rng(0)
    job = np.array(["cook"] * 500 + ["clerk"] * 480 + ["king"] * 20, dtype=object)
    age = drawn.integers(18, 90, 1000)
    found, notes = slices_of({"job": job, "age": age})
    assert set(found) >= {"job=cook", "job=clerk"} and "job=king" not in found
    quarters = [mask for name, mask in found.items() if name.startswith("age ")]
    assert len(quarters) == 4 and np.sum(quarters, axis=0).tolist() == [1] * 1000
    assert notes == ["1 of 3 slices by job have fewer than 30 rows and are left out"]


@pytest.mark.parametrize("floor, verdict", [(0.85, PASS), (0.9, NO_VERDICT), (0.95, FAIL)])
def test_floors(floor: float, verdict: str) -> None:
    drawn = np.random.default_rng(2)
    found = above_floor(ACCURACY, {WRONG: (drawn.random(2_000) < 0.1).astype(np.float64)}, floor, 1, 1)
    assert found.verdict == verdict and found.old is None
    assert found.low < found.lost < found.high and found.lost == pytest.approx(100 * (floor - found.new))
    error = {SQUARED: drawn.exponential(1.0, 2_000)}  # a root of about 1: lower is better
    by_error = above_floor(Metric("rmse", "percent", 0.5), error, 1.9 - floor, 1, 1)
    assert by_error.verdict == {PASS: PASS, NO_VERDICT: NO_VERDICT, FAIL: FAIL}[verdict]
