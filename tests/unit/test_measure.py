"""Clocks, statistics, the ledger and the counts."""

from __future__ import annotations

import timeit

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from flatout.base.errors import UsageError
from flatout.base.tree import to_data, to_text
from flatout.measure.clock import Stopwatch, synchronize, time_repeats
from flatout.measure.counts import count_step
from flatout.measure.ledger import ROWS, Ledger
from flatout.measure.stats import compare, compare_paired, summarize

CPU = torch.device("cpu")


class FakeClock:
    """A fake clock; every reading moves it on by `tick_s`."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.tick_s = tick_s

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


# clocks


@pytest.mark.parametrize("n", [7, 30, 1000, 1100, 5000])
def test_intervals_of_many_values(n: int) -> None:
    values = [1.0 + k / n for k in range(n)]
    found = summarize(values)
    # of 5,000 the median's interval leaves out all but about 139 values in the middle
    assert found.low < found.median < found.high and (n < 1000 or found.high - found.low < 4 / n**0.5)
    assert compare(values, [2 * value for value in values]).better is True


def test_stopwatch_measures_its_block_and_shows_the_time_so_far() -> None:
    clock = FakeClock()
    with Stopwatch(CPU, clock) as watch:
        clock.now_s += 2.0
        assert watch.elapsed_s == 2.0
        clock.now_s += 1.0
    clock.now_s += 50.0
    assert watch.elapsed_s == 3.0


def test_time_repeats_calls_warmup_and_repeats_once_each() -> None:
    calls: list[int] = []
    seconds = time_repeats(lambda: calls.append(1), n=5, warmup=3, device=CPU)
    assert len(calls) == 8 and len(seconds) == 5 and all(s >= 0 for s in seconds)
    synchronize(CPU)


# statistics


def test_interval_of_the_median_is_the_binomial_one() -> None:
    values = [float(i) for i in range(1, 21)]
    summary = summarize(values)
    assert (summary.median, summary.low, summary.high, summary.n) == (10.5, 6.0, 15.0, 20)  # the textbook's ranks for n = 20
    assert summarize([3.0, 1.0, 2.0]).low == 1.0 and summarize([3.0, 1.0, 2.0]).high == 3.0
    assert summarize([7.0]).median == summarize([7.0]).low == 7.0


def test_95_percent_interval_of_the_median_covers_it_95_percent_of_the_time() -> None:
    draw = np.random.default_rng(0)
    summaries = [summarize(draw.lognormal(0.0, 1.0, 15)) for _ in range(1000)]  # skewed; its median is 1
    covered = sum(summary.low <= 1.0 <= summary.high for summary in summaries) / len(summaries)
    assert covered >= 0.94


def noisy_times(seed: int, n: int = 30, center: float = 1.0) -> list[float]:
    """Realistic timings: 3% noise, and now and then a very slow outlier."""
    draw = np.random.default_rng(seed)
    outliers = np.where(draw.random(n) < 0.1, 1.5, 1.0)
    return list(center * draw.lognormal(0.0, 0.03, n) * outliers)


def test_compare_finds_a_planted_difference_of_five_percent() -> None:
    verdicts = [compare(noisy_times(2 * seed, center=0.95), noisy_times(2 * seed + 1)) for seed in range(50)]
    assert sum(verdict.better is True for verdict in verdicts) >= 45
    assert not any(verdict.better is False for verdict in verdicts)
    assert all(verdict.low <= verdict.ratio <= verdict.high for verdict in verdicts)


def test_compare_finds_no_difference_between_equal_samples() -> None:
    verdicts = [compare(noisy_times(2 * seed), noisy_times(2 * seed + 1)).better for seed in range(100)]
    assert sum(verdict is not None for verdict in verdicts) <= 8  # 5% by design
    same = noisy_times(0)
    assert compare(same, same).better is None


def test_compare_knows_which_way_is_better_and_by_how_much() -> None:
    fast, slow = noisy_times(1), noisy_times(2, center=1.5)
    assert compare(fast, slow).better is True and compare(slow, fast).better is False
    assert compare(fast, slow, prefer="max").better is False and compare(slow, fast, prefer="max").better is True
    assert compare(fast, slow, margin=0.5).better is None


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_few_repeats_are_never_enough_evidence(n: int) -> None:
    assert compare([1.0 + i / 100 for i in range(n)], [9.0 + i / 100 for i in range(n)]).better is None


def test_paired_comparison_is_not_affected_by_drift() -> None:
    drift = np.random.default_rng(0).lognormal(0.0, 0.5, 30)
    a, b = list(drift * np.asarray(noisy_times(3, center=0.95))), list(drift * np.asarray(noisy_times(4)))
    assert compare(a, b).better is None
    assert compare_paired(a, b).better is True
    assert compare_paired([1.0] * 5, [2.0] * 5).better is None


def test_a_verdict_does_not_change_when_computed_again() -> None:
    assert compare(noisy_times(1), noisy_times(2)) == compare(noisy_times(1), noisy_times(2))


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [0.0, 1.0], [-1.0]])
def test_compare_rejects_values_without_a_ratio(values: list[float]) -> None:
    with pytest.raises(UsageError, match="a must be"):
        compare(values, [1.0, 2.0])
    with pytest.raises(UsageError, match="same length"):
        compare_paired([1.0, 2.0], [1.0])


# ledger


def test_ledger_adds_up_to_wall_time() -> None:
    clock = FakeClock(tick_s=0.1)
    ledger = Ledger(clock)
    ledger.start()
    began_s = clock.now_s
    draw = np.random.default_rng(0)
    for row in draw.choice(ROWS, 2000):
        clock.now_s += float(draw.random())
        ledger.lap(str(row))
    assert ledger.wall_s == pytest.approx(clock.now_s - began_s, abs=1e-9)
    assert sum(ledger.totals().values()) == pytest.approx(ledger.wall_s, abs=1e-9)
    assert tuple(ledger.totals()) == ROWS


def test_ledger_splits_a_row_without_losing_time() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    clock.now_s += 10.0
    ledger.lap("step")
    ledger.split("step", {"forward": 0.3, "backward": 0.6})
    totals = ledger.totals()
    assert totals["forward"] == pytest.approx(3.0) and totals["backward"] == pytest.approx(6.0)
    assert totals["step"] == pytest.approx(1.0) and sum(totals.values()) == pytest.approx(10.0)
    with pytest.raises(UsageError, match="at most 1"):
        ledger.split("forward", {"data": 0.7, "step": 0.7})
    with pytest.raises(UsageError, match="did you mean 'backward'"):
        ledger.split("forward", {"backwards": 0.5})


def test_a_resumed_ledger_continues_the_earlier_one() -> None:
    clock = FakeClock()
    first = Ledger(clock)
    clock.now_s += 4.0
    first.lap("data")
    second = Ledger(clock)
    second.add(first.to_dict())
    clock.now_s += 100.0  # between the runs: not charged
    second.start()
    clock.now_s += 2.0
    second.lap("data")
    assert second.totals()["data"] == second.wall_s == 6.0


def test_an_unknown_ledger_row_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'evaluation'"):
        Ledger().lap("evaluate")


def test_a_lap_is_cheap() -> None:
    ledger = Ledger()
    best_s = min(timeit.repeat(lambda: ledger.lap("step"), number=2000, repeat=20)) / 2000
    assert best_s < 2e-6  # 170 ns alone on a core; the bound allows for a busy one


def test_ledger_as_a_table() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    clock.now_s += 1.5
    ledger.lap("data")
    clock.now_s += 0.5
    ledger.lap("evaluation")
    assert to_text(ledger.doc()).splitlines() == [
        "where the time went    time  share",
        "data                  1.5 s  75.0%",
        "evaluation           500 ms  25.0%",
        "(10 rows took no time)",
        "2 s of wall time in total",
    ]
    data = to_data(ledger.doc())
    assert data["wall_s"] == 2.0 and {"row": "data", "seconds": 1.5, "share": 0.75} in data["ledger"]
    assert len(data["ledger"]) == len(ROWS)


# counts


def test_counts_of_a_product() -> None:
    a, b = torch.ones(8, 64), torch.ones(64, 32)
    counts = count_step(lambda: a @ b)
    assert counts.flops == 2 * 8 * 64 * 32
    assert counts.bytes == 4 * (8 * 64 + 64 * 32 + 8 * 32)


def test_views_allocations_and_expanded_dimensions_move_no_bytes() -> None:
    x = torch.ones(16, 16)
    assert count_step(lambda: x.t().reshape(2, 8, 16)[0].expand(3, 8, 16)).bytes == 0
    assert count_step(lambda: torch.empty_like(x)).bytes == 0
    assert count_step(lambda: torch.ones(1, 4).expand(100, 4) + torch.ones(100, 4)).bytes == 4 * (4 + 400 + 4 + 400 + 400)


def test_in_place_and_fused_operators_count_their_writes() -> None:
    x = torch.ones(100)
    assert count_step(lambda: x.mul_(2)).bytes == 2 * 400
    model = torch.nn.Linear(64, 32)
    model(torch.ones(1, 64)).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    optimizer.step()
    weight_bytes = 4 * (64 * 32 + 32)
    assert 7 * weight_bytes <= count_step(optimizer.step).bytes <= 9 * weight_bytes  # reads w, g, m, v; writes at least w, m, v


def test_an_embedding_lookup_reads_only_its_rows() -> None:
    table, rows = torch.ones(10_000, 8), torch.arange(4)
    assert count_step(lambda: table.index_select(0, rows)).bytes == 2 * 4 * 8 * 4 + 4 * 8


def test_fake_meta_and_real_tensors_give_equal_counts() -> None:
    def counted(device: str) -> object:
        model, x = torch.nn.Linear(64, 32, device=device), torch.ones(8, 64, device=device)
        return count_step(lambda: model(x).sum().backward())

    with FakeTensorMode():
        fake = counted("cpu")
    assert counted("cpu") == counted("meta") == fake
