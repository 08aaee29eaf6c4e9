"""What a search asks for: that it finds what was planted, wastes nothing on failures, and can be replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from flatout.base.errors import UsageError
from flatout.tuning.search.search import TrialSearch as Search
from flatout.tuning.search.trials import Rung
from flatout.tuning.search.trials import RungAnswer as Answer
from flatout.tuning.space import Space, space_of

SPACE = space_of({"lr": "1e-4..1e-1", "width": [32, 64, 128], "optimizer": ["adamw", "sgd"],
                  "momentum": {"low": 0.5, "high": 0.99, "if": "optimizer is sgd"}})  # fmt: skip
TOTAL = 160
Score = Callable[[Mapping[str, Any], int, int], float | None]


def planted(point: Mapping[str, Any], step: int, number: int) -> float:
    """Best at lr 3e-3 with width 128 and adamw; every curve rises with its steps."""
    worth = 1 - 0.3 * abs(math.log10(point["lr"] / 3e-3)) - 0.1 * (point["width"] != 128) - 0.2 * (point["optimizer"] == "sgd")
    return worth * (1 - 0.5 * math.exp(-5 * step / TOTAL)) + 0.002 * math.sin(97 * number + step)


def study(score: Score, budget: int = 8, sign: float = 1, space: Space = SPACE, **options: Any) -> tuple[Search, list[Rung]]:
    """`budget`: in whole trials."""
    given = {"total": TOTAL, "higher_is_better": sign > 0, "seed": 3, **options}
    search = Search(space, **given)
    rungs, used, at = [], 0, dict[int, int]()
    while (rung := search.next()) is not None:
        assert search.next() is rung, "the same rung until it is answered"
        assert len({one.number for one in rung.trials}) == len(rung.trials) > 0
        for one in rung.trials:
            assert at.get(one.number, 0) < rung.to <= given["total"]
            used += rung.to - at.get(one.number, 0)
            at[one.number] = rung.to
        rungs.append(rung)
        scores = {one.number: score(one.point, rung.to, one.number) for one in rung.trials}
        search.tell(Answer({number: None if one is None else sign * one for number, one in scores.items()},
                           used / (budget * given["total"])))  # fmt: skip
    assert used <= budget * given["total"]
    return search, rungs


@pytest.mark.parametrize("sign", [1, -1])
def test_what_was_planted_is_found(sign: float) -> None:
    search, _ = study(planted, sign=sign)
    (trial, score), *others = search.best(5)
    assert 2e-3 < trial.point["lr"] < 5e-3 and (trial.point["width"], trial.point["optimizer"]) == (128, "adamw")
    assert sign * score > 0.95 and all(sign * score >= sign * other for _, other in others)


def test_the_same_seed_and_answers_give_the_same_rungs() -> None:
    first, again, other = study(planted, 5)[1], study(planted, 5)[1], study(planted, 5, seed=4)[1]
    assert first == again != other


def test_a_study_uses_its_budget_and_not_more() -> None:
    for budget in (1, 2, 5):
        search, rungs = study(planted, budget)
        left = budget * TOTAL - sum(one.at for one in search.trials.values())
        assert 0 <= left < TOTAL
        assert budget == 1 or search.best(1), rungs


def test_failed_trials_are_never_trained_further() -> None:
    failed: set[int] = set()

    def score(point: Mapping[str, Any], step: int, number: int) -> float | None:
        assert number not in failed
        if point["optimizer"] == "sgd" or number == 0:
            failed.add(number)
            return None if number % 2 else math.nan
        return planted(point, step, number)

    search, _ = study(score)
    assert failed and search.history.failed == len(failed)
    assert not failed & {trial.number for trial, _ in search.best(100)}
    assert len(failed) < len(search.trials) / 3  # the model learns where trials fail


def test_a_study_of_failures_ends() -> None:
    search, _ = study(lambda *_: None)
    assert search.best(1) == [] and search.history.failed == len(search.trials)


def test_a_low_score_that_stays_low_is_dropped_early() -> None:
    search, rungs = study(planted)
    done = [trial.at for trial in search.trials.values()]
    assert done.count(TOTAL) < len(done) / 4 and sum(at <= 20 for at in done) > len(done) / 2
    assert all(rung.to in (10, 20, 40, 80, 160) for rung in rungs)


def test_the_first_rung_is_short_if_early_ranks_are_right() -> None:
    search, _ = study(planted)
    assert search.history.first_rung == 10
    check = search.history.checks[0]
    assert (check.early, check.late, check.trials) == (10, 20, 16) and check.correlation > 0.9
    assert f"{check.correlation:.2f}" in search.history.why and "10 of 160" in search.history.why


@pytest.mark.parametrize(("random_until", "first"), [(10, 20), (40, 80)])
def test_the_first_rung_grows_if_early_ranks_are_random(random_until: int, first: int) -> None:
    noise = np.random.default_rng(0).random(10_000)

    def score(point: Mapping[str, Any], step: int, number: int) -> float:
        return float(noise[number * 7 + step]) if step <= random_until else planted(point, step, number)

    search, rungs = study(score, budget=25)
    assert search.history.first_rung == first
    fresh = [rung.to for rung in rungs if min(one.number for one in rung.trials) >= 16]
    assert min(fresh) == first


def test_given_points_are_tried_first() -> None:
    own = [{"lr": 0.05, "width": 32, "optimizer": "sgd", "momentum": 0.9}, {"lr": 0.01, "width": 64, "optimizer": "adamw"}]
    search = Search(SPACE, total=TOTAL, higher_is_better=True, seed=0, start=[*own, own[0]])
    rung = search.next()
    assert rung is not None and [dict(one.point) for one in rung.trials[:2]] == own
    assert [dict(one.point) for one in rung.trials].count(own[0]) == 1
    with pytest.raises(UsageError, match="lr"):
        Search(SPACE, total=TOTAL, higher_is_better=True, seed=0, start=[{"lr": 5.0}])


def test_an_earlier_study_helps() -> None:
    units = np.random.default_rng(1).random((30, len(SPACE.parameters)))
    points = [SPACE.point(row.tolist()) for row in units]
    earlier = [(point, planted(point, TOTAL, 0)) for point in points] + [({"gone": 1}, 5.0)]
    rung = Search(SPACE, total=TOTAL, higher_is_better=True, seed=0, earlier=earlier).next()
    blind = Search(SPACE, total=TOTAL, higher_is_better=True, seed=0).next()
    assert rung is not None and blind is not None
    assert _mean(rung) > _mean(blind) + 0.1


def _mean(rung: Rung) -> float:
    return float(np.mean([planted(one.point, TOTAL, 0) for one in rung.trials]))


def test_no_point_is_tried_twice_and_a_small_space_is_tried_whole() -> None:
    space = space_of({"width": [32, 64, 128], "optimizer": ["adamw", "sgd"]})
    search, _ = study(lambda point, step, number: point["width"] - (point["optimizer"] == "sgd"), 30, space=space)
    points = [tuple(one.trial.point.values()) for one in search.trials.values()]
    assert len(points) == len(set(points)) == space.size == 6
    assert search.best(1)[0][0].point == {"width": 128, "optimizer": "adamw"}


def test_no_more_trials_than_allowed() -> None:
    search, _ = study(planted, most_trials=5)
    assert len(search.trials) == 5 and len(search.best(9)) == 5
    assert study(planted, most_trials=1)[0].best(1)


def test_trials_of_one_step() -> None:
    search, rungs = study(planted, 30, total=1)
    assert {rung.to for rung in rungs} == {1} and len(search.best(100)) == 30


def test_counts_add_up() -> None:
    search, _ = study(planted)
    told = search.history
    assert told.trials == told.alive + told.dropped + told.failed + told.finished and told.alive == 0
    assert 0 < told.sampler_s < 5


def test_an_answer_for_no_rung_or_for_a_part_of_one() -> None:
    search = Search(SPACE, total=TOTAL, higher_is_better=True, seed=0)
    with pytest.raises(UsageError):
        search.tell(Answer({}, 0.1))
    rung = search.next()
    assert rung is not None
    with pytest.raises(UsageError):
        search.tell(Answer({rung.trials[0].number: 1.0}, 0.1))


def test_trials_that_cost_nearly_nothing_go_on() -> None:
    """As many as one stack on a GPU trains in about the time of a few."""

    def widths(nearly_free: int) -> list[int]:
        search = Search(SPACE, total=TOTAL, higher_is_better=True, seed=3, most_trials=32)
        search.nearly_free, found = nearly_free, []
        while (rung := search.next()) is not None:
            found.append(len(rung.trials))
            search.tell(Answer({one.number: planted(one.point, rung.to, one.number) for one in rung.trials}, 0.0))
        return found

    assert min(widths(0)) < 8 <= min(widths(8))
