"""Gains of optimisations: measured once within a time limit and stored with the ceilings."""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flatout.machine import gains as measuring
from flatout.machine import probe as probing
from flatout.machine.cache import CeilingsCache
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.machine.comparisons import channels_last, fused_update, in_bfloat16, torchs_own
from flatout.machine.facts import fingerprint, read_facts
from flatout.machine.gains import Gain, GainComparison, Gains, Pair, Way, gain_key
from flatout.machine.hand_over import USUAL_HAND_OVER_S, hand_over_seconds
from flatout.machine.optimisations import CHANNELS_LAST, FUSED_OPTIMIZER, OWN_CONVOLUTIONS
from flatout.machine.probe import keep_gains, probe
from flatout.machine.rates import Unavailable
from flatout.measure.counts import Operation, count_step
from flatout.measure.groups import CONVOLUTIONS, PRODUCTS

CPU = torch.device("cpu")
BARE = Ceilings("cpu", {"fp32": MeasuredRate(1e11, 1e11, 1e11, 5)})


class Clock:
    """Each comparison of two ways takes `each_s`; the first takes `without_s`, the second `with_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each_s: float = 0.1) -> None:
        self.now_s, self.each_s, self.timed = 0.0, each_s, 0
        self.seconds: list[list[float]] = [[2.0, 2.1, 2.2, 2.0], [1.0, 1.1, 1.2, 1.0]]
        monkeypatch.setattr(measuring, "time_in_turns", self._time)

    def __call__(self) -> float:
        return self.now_s

    def _time(self, ways: Any, device: torch.device, **how: Any) -> list[list[float]]:
        for way in ways:
            way()
        self.timed += 1
        self.now_s += self.each_s
        return self.seconds


def compared(key: str, pairs: int = 1, ready: Callable[..., Any] = lambda device, numbers: (int, int)) -> GainComparison:
    return GainComparison(key, [Pair(1.0, 1.0, ready)] * pairs)


def operations(group: str = CONVOLUTIONS) -> list[Operation]:
    def step() -> None:
        images = F.conv2d(torch.randn(4, 3, 8, 8), torch.randn(8, 3, 3, 3, requires_grad=True))
        (images.flatten(1) @ torch.randn(288, 5)).sum().backward()

    return [one for one in count_step(step).operations if one.group == group]


def test_a_gain_is_measured_once_and_labelled_as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    gains = Gains(limit_s=1.0, clock=clock)
    gain = gains.expected(CHANNELS_LAST, CPU, compared("a"))
    assert gain == Gain(2.0, measured=True) and gain.words == "measured here: 2x"
    assert gains.expected(CHANNELS_LAST, CPU, compared("a")) == gain and clock.timed == 1 and gains.new == {"a": 2.0}


def test_without_a_measurement_the_usual_gain_is_labelled_as_such() -> None:
    gain = Gains().expected(CHANNELS_LAST, CPU, compared("unknown"))
    assert gain is not None and not gain.measured and gain.factor == CHANNELS_LAST.usual["cpu"]
    assert "not measured here" in gain.words
    assert Gains().expected(CHANNELS_LAST, torch.device("cuda"), None, "bfloat16") == Gain(1.9, measured=False)
    assert Gains().expected(OWN_CONVOLUTIONS, CPU, compared("unknown")) is None  # unknown
    assert Gains().expected(CHANNELS_LAST, torch.device("mps"), None) is None


def test_measuring_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, each_s=0.3)
    gains = Gains(limit_s=2.0, clock=clock)
    for name in "abcdefgh":
        gains.measured(compared(name, pairs=20), CPU)
    assert clock.now_s <= 2.0 + measuring.ONE_GAIN_S + clock.each_s and 1 <= len(gains.new) < 8
    assert gains.measured(compared("h"), CPU) is None  # not measured, but not marked as unmeasurable


def test_known_gains_cost_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert Gains({"a": 1.5}, 1.0, clock).measured(compared("a"), CPU) == 1.5 and not clock.timed


def test_an_unsupported_optimisation_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device, numbers: torch.Generator) -> Any:
        raise RuntimeError("no such kernel")

    gains = Gains(limit_s=1.0, clock=Clock(monkeypatch))
    gain = gains.expected(FUSED_OPTIMIZER, CPU, compared("a", ready=broken))
    assert gains.new == {"a": None} and gain is not None and not gain.measured


@pytest.mark.parametrize("seconds", [[[2.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 3.0]]])
def test_a_measurement_on_a_busy_machine_is_discarded(monkeypatch: pytest.MonkeyPatch, seconds: Any) -> None:
    clock = Clock(monkeypatch)
    clock.seconds = seconds
    gains = Gains(limit_s=1.0, clock=clock)
    assert gains.measured(compared("a"), CPU) is None and not gains.new
    clock.seconds = [[2.0, 2.0], [1.0, 1.0]]
    assert gains.measured(compared("a"), CPU) is None and clock.timed == 1  # the same result within one process


def test_after_a_memory_shortage_it_is_measured_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    gains = Gains(limit_s=1.0, clock=clock)
    assert gains.measured(GainComparison("a", [Pair(1e18, 1.0, lambda device, numbers: (int, int))]), CPU) is None
    assert not gains.new and not clock.timed


def test_gains_are_kept_with_the_ceilings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(probing, "measure_ceilings", lambda *given, **named: BARE)
    first = probe(CPU, tmp_path, quick=True, comparisons=lambda ceilings: [compared("a")])
    again = probe(CPU, tmp_path, quick=True, comparisons=lambda ceilings: [compared("a")])
    assert dict(first.ceilings.gains) == dict(again.ceilings.gains) == {"a": 2.0} and again.cached and clock.timed == 1
    keep_gains(CPU, tmp_path, {"b": 1.25, "c": None})
    assert dict(probe(CPU, tmp_path, quick=True).ceilings.gains) == {"a": 2.0, "b": 1.25, "c": None}
    keep_gains(CPU, tmp_path / "nothing was measured here", {"b": 1.25})
    assert not (tmp_path / "nothing was measured here").exists()


def test_ceilings_of_older_versions_without_gains_can_be_used(tmp_path: Path) -> None:
    cache, key = CeilingsCache(tmp_path), fingerprint(read_facts())
    cache.save(key, CPU, True, BARE, ())
    (path,) = tmp_path.glob("*.json")
    written = json.loads(path.read_text())
    del written["ceilings"]["gains"]
    path.write_text(json.dumps(written))
    kept = cache.load(key, CPU, True)
    assert kept is not None and kept.ceilings == BARE and not cache.notes


def test_the_key_names_the_work_the_threads_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gain_key(CHANNELS_LAST, CPU, "a", "b") == gain_key(CHANNELS_LAST, CPU, "b", "a", "b")
    keys = {gain_key(CHANNELS_LAST, CPU, "a"), gain_key(OWN_CONVOLUTIONS, CPU, "a"), gain_key(CHANNELS_LAST, CPU, "b")}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert len({*keys, gain_key(CHANNELS_LAST, CPU, "a"), gain_key(CHANNELS_LAST, torch.device("cuda"), "a")}) == 5


def test_a_hand_over_is_measured_once_for_batches_of_about_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def seconds(size_bytes: float) -> list[float]:
        asked.append(size_bytes)
        return [0.004, 0.004, 0.009, 0.008]

    monkeypatch.setattr(measuring, "hand_over_seconds", seconds)
    gains = Gains(limit_s=1.0)
    assert gains.hand_over_s(3e6) == gains.hand_over_s(3.5e6) == pytest.approx(0.004) and asked == [3e6]
    assert list(gains.new) == ["hand_over of 4.19 MB, seconds"]
    assert Gains(gains.new).hand_over_s(3e6) == pytest.approx(0.004) and len(asked) == 1
    assert Gains().hand_over_s(3e6) == USUAL_HAND_OVER_S and len(asked) == 1


def test_without_a_stable_measurement_the_usual_hand_over_time_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(size_bytes: float) -> list[float]:
        raise Unavailable("no fork here")

    monkeypatch.setattr(measuring, "hand_over_seconds", unavailable)
    gains = Gains(limit_s=1.0)
    assert gains.hand_over_s(100) == USUAL_HAND_OVER_S and list(gains.new.values()) == [None]
    monkeypatch.setattr(measuring, "hand_over_seconds", lambda size_bytes: [0.001, 0.004])
    busy = Gains(limit_s=1.0)
    assert busy.hand_over_s(100) == USUAL_HAND_OVER_S and not busy.new


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
def test_a_real_worker_is_measured_and_ended() -> None:
    state, children = torch.random.get_rng_state(), len(multiprocessing.active_children())
    seconds = hand_over_seconds(1e4)
    assert len(seconds) >= 4 and min(seconds) > 0
    assert torch.equal(state, torch.random.get_rng_state()) and len(multiprocessing.active_children()) == children


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread: with other tests on the cores, threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def steady(monkeypatch: pytest.MonkeyPatch) -> Gains:
    """Other tests run at the same time, so the halves of a measurement need not agree."""
    monkeypatch.setattr(measuring, "_AGREES", math.inf)
    return Gains(limit_s=60.0)


@pytest.mark.usefixtures("one_thread")
def test_convolutions_products_and_updates_can_be_compared_here(monkeypatch: pytest.MonkeyPatch) -> None:
    gains, convolutions, products = steady(monkeypatch), operations(), operations(PRODUCTS)
    assert len(convolutions) == 2 and products

    def make(weights: list[nn.Parameter], fused: bool) -> Way:
        return torch.optim.AdamW(weights, fused=fused).step

    comparisons = (
        channels_last(CPU, convolutions),
        torchs_own(CPU, convolutions, lambda call: call),
        in_bfloat16(CPU, [*convolutions, *products], "highest"),
        fused_update(CPU, "AdamW", (1000, 20), torch.float32, make),
    )
    state = torch.random.get_rng_state()
    for one in comparisons:
        assert one is not None
        factor = gains.measured(one, CPU)
        assert factor is not None and 0 < factor < 1e4, one.key
    assert torch.equal(state, torch.random.get_rng_state()) and torch.is_grad_enabled() and len(gains.new) == 4


def test_only_a_few_operators_and_small_parts_of_large_ones_are_compared() -> None:
    def step() -> None:
        for size in range(8, 40, 2):
            F.conv2d(torch.empty(1024, 16, size, size, device="meta"), torch.empty(16, 16, 3, 3, device="meta"))

    one = channels_last(CPU, count_step(step).operations)
    assert one is not None and len(one.pairs) == 8
    assert max(pair.needed_bytes for pair in one.pairs) < 50e6 and all(pair.weight > 1 for pair in one.pairs)


def test_no_comparison_without_operators() -> None:
    assert channels_last(CPU, operations(PRODUCTS)) is None and channels_last(CPU, []) is None
    assert fused_update(CPU, "AdamW", (), torch.float32, lambda weights, fused: int) is None


def test_a_gain_applies_only_to_its_part_of_a_step() -> None:
    assert Gain(2.0, measured=True).of_step(0.5) == pytest.approx(4 / 3)
    assert Gain(2.0, measured=True).of_step(0.0) == 1.0 and Gain(2.0, measured=True).of_step(1.0) == pytest.approx(2.0)
