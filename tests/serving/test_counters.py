"""Counters that all fronts share: nothing is lost between processes, and quantiles are those of the requests."""

from __future__ import annotations

import os

import numpy as np
import pytest

from flatout.serving.counters import CODES, PARTS, SharedCounters


def spent(total: float, **parts: float) -> list[float]:
    return [{**parts, "total": total}.get(name, 0.0) for name in PARTS]


def test_two_processes_add_up() -> None:
    shared = SharedCounters()
    if not (child := os.fork()):
        again = SharedCounters(shared.descriptor)
        again.tally(1, 3).add([200] * 100, 200, [spent(0.01)] * 100)
        os._exit(0)
    for _ in range(50):
        shared.tally(0, 3).add([503], 0, [spent(0.001)])
    os.waitpid(child, 0)
    summed = shared.summed(3)
    assert (summed.requests, summed.count("answered"), summed.count("late"), summed.rows) == (150, 100, 50, 200)
    assert summed.sum_s("total") == pytest.approx(1.05, rel=1e-6)
    assert shared.summed(2).requests == 0
    assert shared.latencies().requests == 150


def test_quantiles_are_within_a_step_of_the_truth() -> None:
    draw = np.random.default_rng(7)
    times = draw.lognormal(-6, 1.2, 20_000)
    shared = SharedCounters()
    tally = shared.tally(5, 1)
    some = [spent(seconds, queue=seconds / 3 if seconds > 0.002 else 0.0) for seconds in times]
    tally.add([200] * len(some), len(some), some)
    summed = shared.summed(1)
    for share in (0.5, 0.9, 0.99, 0.999):
        assert summed.quantile_s("total", share) == pytest.approx(np.quantile(times, share), rel=0.1)
    waits = np.where(times > 0.002, times / 3, 0.0)
    assert summed.quantile_s("queue", 0.99) == pytest.approx(np.quantile(waits, 0.99), rel=0.1)
    assert summed.quantile_s("queue", 0.1) == 0.0
    assert summed.quantile_s("hook", 0.99) == 0.0
    assert SharedCounters().summed(1).quantile_s("total", 0.5) is None


def test_quantiles_since_an_earlier_look() -> None:
    shared = SharedCounters()
    shared.tally(0, 1).add([200] * 100, 100, [spent(1.0)] * 100)
    before = shared.summed(1)
    shared.tally(0, 1).add([200] * 10, 10, [spent(0.001)] * 10)
    assert shared.summed(1).quantile_s("total", 0.99, before) == pytest.approx(0.001, rel=0.2)


def test_times_beyond_the_steps_are_counted_in_the_last() -> None:
    shared = SharedCounters()
    shared.tally(0, 1).add([200, 404, 503, 500], 1, [spent(1e6), spent(1e-12), spent(1.0), spent(1.0)])
    assert [shared.summed(1).count(code) for code in CODES] == [1, 1, 1, 1]
    assert shared.summed(1).quantile_s("total", 0.99) == pytest.approx(33.5, rel=0.2)
