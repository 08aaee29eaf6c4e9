"""Batching decisions in simulated time, with random arrivals that differ in every run of the tests."""

from __future__ import annotations

import itertools
from collections import Counter
from math import inf

import numpy as np
import pytest
from simulated import ON_A_GPU, Answer, model, poisson, simple_rule, simulate

from flatout.base.errors import UsageError
from flatout.base.latency_goal import LatencyGoal
from flatout.serving.asking import Reason
from flatout.serving.batching import Batcher, Waiting
from flatout.serving.costs import CostCurve

CAPACITY = 256 / 0.014  # rows/s of ON_A_GPU
GOAL, BUDGET_S = "p99 50 ms", 0.045  # the rest of the goal is for the network


@pytest.fixture
def draw() -> np.random.Generator:
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")  # shown if the test fails
    return np.random.default_rng(seed)  # type: ignore[arg-type]


def noise(draw: np.random.Generator, share: float = 0.1) -> float:
    return float(np.exp(draw.normal(0, share)))


@pytest.mark.parametrize("load", [0.01, 0.1, 0.5, 0.8])
def test_below_capacity_every_request_is_in_time(draw: np.random.Generator, load: float) -> None:
    arrivals = poisson(draw, load * CAPACITY, min(2.0, 2000 / (load * CAPACITY) + 0.2))
    found = simulate([model(goal=GOAL)], arrivals, lambda: noise(draw))
    assert len(found.answers) == len(arrivals)
    assert found.good == len(arrivals)


def test_a_lone_request_is_sent_at_once(draw: np.random.Generator) -> None:
    found = simulate([model(goal=GOAL)], poisson(draw, 20, 2))
    alone = [answer for answer in found.answers if answer.batch_rows == 1]
    assert len(alone) > 0.8 * len(found.answers)
    assert all(answer.reason is Reason.IDLE for answer in found.answers)
    assert np.median(found.latencies()) == pytest.approx(0.001)


@pytest.mark.parametrize("load", [1.2, 2.0, 5.0])
def test_above_capacity_most_of_it_is_used_for_answers_in_time(draw: np.random.Generator, load: float) -> None:
    seconds = 0.8
    arrivals = poisson(draw, load * CAPACITY, seconds)
    found = simulate([model(goal=GOAL)], arrivals, lambda: noise(draw))
    others = [Waiting(one.id, 0, 1, one.arrival_s) for one in arrivals]
    greedy = simple_rule(ON_A_GPU, others, BUDGET_S, 0.0, 256, lambda: noise(draw))
    delayed = simple_rule(ON_A_GPU, others, BUDGET_S, 0.005, 64, lambda: noise(draw))
    assert found.good > 0.8 * CAPACITY * seconds
    assert found.good > 2 * max(greedy, delayed)
    assert np.quantile(found.latencies(), 0.99) < 0.05  # the goal itself
    assert found.refused_while_idle == 0
    assert all(answer.retry_after_s > 0 for answer in found.answers if answer.refused)


def test_clients_that_wait_for_their_answers_are_not_kept_waiting(draw: np.random.Generator) -> None:
    """A rate that comes from the answers themselves must not make the batcher wait for more."""
    left = itertools.count(8)

    def again(answer: Answer) -> Waiting | None:
        number = next(left)
        return Waiting(number, 0, 1, answer.at_s + 1e-5 * draw.random()) if number < 4000 else None

    found = simulate([model(goal=GOAL)], [Waiting(number, 0, 1, 100.0) for number in range(8)], lambda: 1.0, again)
    seconds = max(answer.at_s for answer in found.answers) - 100.0
    assert found.busy_s > 0.95 * seconds
    assert len(found.answers) / seconds > 0.95 * 4 / CostCurve(ON_A_GPU).seconds(4)  # two groups that take turns


def test_waiting_ends_before_the_deadline_is_in_danger(draw: np.random.Generator) -> None:
    """One row costs as much as many, and rows come faster than they can be run alone: waiting pays, up to the deadline."""
    flat = [(1, 0.010), (64, 0.011), (256, 0.030)]
    found = simulate([model(points=flat, goal="p99 40 ms")], poisson(draw, 1500, 2), lambda: noise(draw, 0.03))
    assert found.good > 0.99 * len(found.answers)
    assert np.mean([answer.batch_rows for answer in found.answers]) > 10


def test_deadlines_of_their_own_go_first(draw: np.random.Generator) -> None:
    arrivals = poisson(draw, 0.9 * CAPACITY, 0.5)
    for request in arrivals[::50]:
        request.deadline_s = request.arrival_s + 0.04
    found = simulate([model()], arrivals, lambda: noise(draw))
    own = [answer for answer in found.answers if answer.request.deadline_s < inf]
    assert sum(answer.in_time for answer in own) > 0.97 * len(own)
    assert not any(answer.refused for answer in found.answers if answer.request.deadline_s == inf)


def test_priorities_go_first_and_nobody_starves(draw: np.random.Generator) -> None:
    arrivals = poisson(draw, 1.5 * CAPACITY, 0.6, priority=lambda: int(draw.random() < 0.5))
    found = simulate([model()], arrivals)
    assert len(found.answers) == len(arrivals) and not any(answer.refused for answer in found.answers)
    waits = {
        level: np.median([one.at_s - one.request.arrival_s for one in found.answers if one.request.priority == level])
        for level in (0, 1)
    }
    assert waits[0] < 0.3 * waits[1]
    # one that has waited long enough goes before newer ones of a higher priority
    batcher = Batcher([model()])
    batcher.arrive([Waiting(1, 0, 1, 100.0, priority=3)], 100.0, 200.0)
    batcher.arrive([Waiting(number, 0, 1, 150.0) for number in range(2, 400)], 150.0, 200.0)
    sent = batcher.next(150.0, 0.0).batch
    assert sent is not None and 1 in [request.id for request in sent.requests]


def test_a_queue_without_a_goal_is_bounded() -> None:
    batcher = Batcher([model()])
    rows = int(40 * CAPACITY / 100)
    refused = batcher.arrive([Waiting(number, 0, 100, 100.0) for number in range(rows)], 100.0, 101.0)
    assert 0.15 * rows < len(refused) < 0.35 * rows
    assert all(refusal.retry_after_s > 0 for refusal in refused)


def test_a_heavy_model_does_not_starve_a_light_one(draw: np.random.Generator) -> None:
    light, heavy = model(0), model(1, [(1, 0.050), (8, 0.4)])
    arrivals = poisson(draw, 200, 3) + poisson(draw, 60, 3, number=1)  # three times what the device could do
    found = simulate([light, heavy], arrivals)
    ends = sorted(answer.at_s for answer in found.answers if answer.request.model == 0)
    assert ends[-1] < 100 + 3 + 1.5
    slow = [answer.at_s for answer in found.answers if answer.request.model == 1]
    assert min(slow) < 101  # and the heavy one is not left out


def test_two_models_with_goals_share_a_device(draw: np.random.Generator) -> None:
    tight, loose = model(0, goal="p99 20 ms"), model(1, [(1, 0.004), (32, 0.008)], goal="p99 200 ms")
    arrivals = poisson(draw, 2000, 1.5) + poisson(draw, 400, 1.5, number=1)
    found = simulate([tight, loose], arrivals, lambda: noise(draw, 0.05))
    for number in (0, 1):
        own = [answer for answer in found.answers if answer.request.model == number]
        assert sum(answer.in_time for answer in own) > 0.97 * len(own)


def test_batches_hold_one_shape_and_say_so() -> None:
    batcher = Batcher([model(goal=GOAL)])
    requests = [Waiting(place, 0, 1, 100.0 + 1e-6 * place, sizes=(place % 3,)) for place in range(30)]
    batcher.arrive(requests, 100.0, 0.0)
    reasons = []
    while batcher.rows:
        batch = batcher.next(100.0, 0.0).batch
        assert batch is not None
        assert {request.sizes for request in batch.requests} == {batch.sizes}
        reasons.append(batch.reason)
    assert Counter(reasons) == {Reason.SHAPE: 2, Reason.IDLE: 1}


def test_a_size_that_would_mostly_be_padding_is_not_run() -> None:
    padded = [(1, 0.0006), (2, 0.0009), (16, 0.0009), (17, 0.0029), (64, 0.0029)]
    found = simulate([model(points=padded)], [Waiting(place, 0, 1, 100.0) for place in range(23)])
    assert sorted({answer.batch_rows for answer in found.answers}) == [7, 16]
    assert max(found.latencies()) == pytest.approx(0.0018)
    full = simulate([model(points=padded)], [Waiting(place, 0, 1, 100.0) for place in range(60)])
    assert {answer.batch_rows for answer in full.answers} == {60}


def test_a_request_larger_than_a_batch_is_run_in_pieces(draw: np.random.Generator) -> None:
    small = [Waiting(number, 0, 1, 100.0 + 0.002 * number) for number in range(1, 50)]
    found = simulate([model()], [Waiting(0, 0, 5000, 100.0), *small])
    big = next(answer for answer in found.answers if answer.request.id == 0)
    assert big.at_s >= 100 + 5000 / CAPACITY and len(found.answers) == 50


@pytest.mark.parametrize("rows", [3, 256, 5000])
def test_what_is_put_back_is_run_again(rows: int) -> None:
    batcher = Batcher([model(), model(1)])
    batcher.arrive([Waiting(0, 0, rows, 100.0), Waiting(1, 0, 2, 100.0), Waiting(2, 1, 1, 100.0)], 100.0, 0.0)
    batch = batcher.next(100.0, 0.0).batch
    assert batch is not None
    batch.model.curve.limit(64)
    batch.model.revise()
    batcher.put_back(batch)
    assert batcher.rows == rows + 3
    run: Counter[int] = Counter()
    while batcher.rows:
        batch = batcher.next(100.0, 0.0).batch
        assert batch is not None and (batch.rows <= 64 or batch.model.number == 1)
        for request in batch.requests:
            run[request.id] += min(batch.rows, request.rows)
    assert run == {0: rows, 1: 2, 2: 1}


def test_costs_follow_what_batches_take(draw: np.random.Generator) -> None:
    curve = CostCurve(ON_A_GPU)
    assert curve.seconds(1) == 0.001 and curve.seconds(36) == pytest.approx(0.00275) and curve.largest == 256
    for _ in range(200):  # the device became half as fast
        rows = int(draw.integers(1, 257))
        curve.took(rows, 2 * CostCurve(ON_A_GPU).seconds(rows) * noise(draw, 0.05))
    assert curve.seconds(256) == pytest.approx(0.028, rel=0.15)
    before = curve.seconds(256)
    curve.took(256, 10.0)  # one odd batch
    assert curve.seconds(256) < 1.5 * before


def test_a_size_that_once_was_slow_is_tried_again(draw: np.random.Generator) -> None:
    """Photos that the device decodes make all sizes slow; tensors that come afterwards need the large ones."""
    resnet = [(1, 0.0006), (4, 0.0007), (16, 0.0012), (64, 0.0029), (256, 0.0105)]
    one = model(points=resnet, goal="p99 50 ms")
    for rows in (1, 4, 16, 64) * 50:
        one.took(rows, CostCurve(resnet).seconds(rows) + 0.0005 * rows)
    assert one.curve.rows_per_s(64) < 2000
    few = simulate([one], poisson(draw, 5000, 4), noise=lambda: noise(draw, 0.05), truth=resnet)
    assert few.good == len(few.answers)
    many = simulate([one], poisson(draw, 17_000, 1, begin_s=200.0), noise=lambda: noise(draw, 0.05), truth=resnet)
    assert many.good > 0.99 * len(many.answers)


@pytest.mark.parametrize(
    ("text", "seconds", "share"),
    [
        ("p99 50 ms", 0.05, 0.99),
        ("50ms", 0.05, 0.99),
        ("p95 0.1 s", 0.1, 0.95),
        ("P99.9 <= 2s", 2.0, 0.999),
        (" p50 1 min", 60, 0.5),
    ],
)
def test_goals_are_read_as_people_write_them(text: str, seconds: float, share: float) -> None:
    goal = LatencyGoal.parse(text)
    assert goal.seconds == pytest.approx(seconds) and goal.share == pytest.approx(share)
    assert LatencyGoal.parse(str(goal)) == goal


@pytest.mark.parametrize(
    "text", ["", "p99", "fast", "p99 50", "50", "p0 50 ms", "p100 1 s", "p99 0 ms", "p99 50 MB", "99 50 ms"]
)
def test_other_goals_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="latency goal"):
        LatencyGoal.parse(text)
