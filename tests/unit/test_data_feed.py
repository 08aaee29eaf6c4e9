"""What a training loop is served: equal bits from every tier, from any position, whatever the batch size."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data import Data, arrays, digits, text
from flatout.data.feeds.ahead import Ahead
from flatout.data.feeds.feed import EvalFeed, PinnedFeed, ResidentFeed, eval_batches, feed, feed_options
from flatout.data.order.keyed import Order
from flatout.data.source import Batch, Column, Source

AUGMENT = ["flip", {"crop": 2}, {"crop": {"padding": 1, "mode": "zero"}}, {"cutout": 3}]


def _same(first: Batch, second: Batch) -> bool:
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def _datasets() -> list[Data]:
    return [
        digits(augment=AUGMENT),
        digits(draw="balanced", augment=AUGMENT),
        arrays(torch.randn(500, 3), torch.randn(500), weight=torch.rand(500), draw="weight", normalize="auto"),
        text("module:json", window=32),
    ]


@pytest.mark.parametrize("data", _datasets(), ids=["shuffled", "balanced", "weighted", "text"])
def test_tiers_and_the_captured_path_give_equal_bits(data: Data) -> None:
    resident, pinned, captured = (feed(data, tier, 96, "cpu", seed=5) for tier in ("resident", "pinned", "resident"))
    assert isinstance(captured, ResidentFeed)
    captured.load(steps=7)
    for _ in range(40):  # several epochs, and several refills of the static buffers
        batch = resident.next()
        assert _same(batch, pinned.next())
        assert _same(batch, captured.capture_next())
        captured.replayed()
    assert resident.position == pinned.position == captured.position == 40 * 96
    assert resident.degraded == pinned.degraded == []


@pytest.mark.parametrize("tier", ["resident", "pinned"])
def test_seeking_equals_continuing(tier: str) -> None:
    data = digits(augment=AUGMENT)
    straight, resumed = feed(data, tier, 100, "cpu", seed=1), feed(data, tier, 100, "cpu", seed=1)
    for _ in range(33):
        straight.next()
    resumed.seek(straight.position)
    for _ in range(5):
        assert _same(straight.next(), resumed.next())
    straight.seek(0)
    assert _same(straight.next(), feed(data, tier, 100, "cpu", seed=1).next())


def test_an_epoch_has_each_row_once_and_seeds_differ() -> None:
    data = arrays(torch.arange(1000))
    served = feed(data, "resident", 250, "cpu", seed=3)
    first = torch.cat([served.next()["x"] for _ in range(4)])
    second = torch.cat([served.next()["x"] for _ in range(4)])
    assert first.sort().values.equal(torch.arange(1000)) and second.sort().values.equal(torch.arange(1000))
    assert not first.equal(second)
    assert not first[:250].equal(feed(data, "resident", 250, "cpu", seed=4).next()["x"])


def test_sizes_may_vary_and_blocks_of_rows_join_without_a_seam() -> None:
    data = arrays(torch.arange(10_007))
    served = feed(data, "resident", 4096, "cpu")
    sizes = [1, 4096, 100, 70_000, 4096, 3]  # one larger than the stretch that is computed ahead
    rows = torch.cat([served.next(size)["x"] for size in sizes] + [served.next()["x"] for _ in range(20)])
    assert rows.equal(Order(0, (10_007,)).rows(0, len(rows)))
    served.seek(5)  # back, to before what is held
    assert served.next()["x"].equal(rows[5:4101])


def test_eager_batches_and_seeks_between_captured_ones_keep_the_place() -> None:
    data = digits(augment=["flip"])
    plain, mixed = (ResidentFeed(data.train, data.sampler(0), feed_options(50, "cpu")) for _ in range(2))
    mixed.load(steps=4)
    for turn in range(30):
        size = 13 if turn % 3 == 1 else 50
        expected = plain.next(size)
        if turn % 3:
            assert _same(expected, mixed.next(size))
        else:
            assert _same(expected, mixed.capture_next())
            mixed.replayed()
    plain.seek(777)
    mixed.seek(777)
    assert _same(plain.next(), mixed.capture_next())


def test_static_buffers_are_asked_for_first_and_never_move() -> None:
    served = ResidentFeed(digits().train, digits().sampler(0), feed_options(50, "cpu"))
    with pytest.raises(UsageError, match=r"call load\(\) before"):
        served.capture_next()
    served.load(steps=3)
    with pytest.raises(UsageError, match="hold 3 steps"):
        served.load(steps=4)


def test_augmentation_is_a_function_of_seed_epoch_and_sample_only() -> None:
    images = torch.rand(64, 3, 12, 12)
    data = arrays(images, name=torch.arange(64), augment=AUGMENT)

    def epoch(batch: int, number: int, seed: int) -> dict[int, Tensor]:
        served = feed(data, "resident", batch, "cpu", seed)
        served.seek(64 * number)
        batches = [served.next() for _ in range(64 // batch)]
        return {int(name): x for b in batches for name, x in zip(b["name"], b["x"], strict=True)}

    reference = epoch(64, 3, seed=0)
    for batch in (1, 16):
        other = epoch(batch, 3, seed=0)
        assert all(other[name].equal(reference[name]) for name in reference)
    for other in (epoch(64, 4, seed=0), epoch(64, 3, seed=1)):
        assert sum(other[name].equal(reference[name]) for name in reference) < 8


def test_repeated_draws_of_one_row_are_augmented_anew() -> None:
    data = arrays(torch.rand(4, 16, 16), torch.tensor([0, 0, 0, 1]), draw="balanced", augment=[{"crop": 6}])
    batch = feed(data, "resident", 40, "cpu").next()
    rare = batch["x"][batch["y"] == 1]
    assert len(rare) > 8 and len(rare.flatten(1).unique(dim=0)) > len(rare) // 2


@pytest.mark.parametrize("tier", ["resident", "pinned"])
def test_evaluation_reads_all_rows_in_order_as_often_as_asked(tier: str) -> None:
    data = digits(normalize="auto", augment=["flip"])
    assert data.validation is not None
    everything = EvalFeed(data.validation, data.prepare, 100, "cpu", tier)
    assert len(everything) == 4
    first = list(everything)
    assert [len(batch["y"]) for batch in first] == [100, 100, 100, 59]
    assert all(_same(a, b) for a, b in zip(first, everything, strict=True))
    labels = data.validation.read(torch.arange(359))["y"]
    assert torch.cat([batch["y"] for batch in first]).equal(labels)
    assert abs(float(torch.cat([batch["x"] for batch in first]).mean())) < 0.05
    stopped = eval_batches(data.validation, data.prepare, 100, "cpu", tier)
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "flatout-ahead"]


class Failing(Source):
    """Rows above 150 can't be read."""

    @property
    def schema(self) -> dict[str, Column]:
        return {"x": Column(torch.int64, ())}

    def __len__(self) -> int:
        return 200

    def read(self, rows: Tensor) -> Batch:
        if rows.max() > 150:
            raise DataError("row 151 can't be read")
        return {"x": rows}

    def fingerprint(self) -> str:
        return "0"


def test_a_source_needs_only_four_methods_and_its_errors_arrive() -> None:
    batches = iter(EvalFeed(Failing(), (), 50, "cpu", "pinned"))
    assert torch.cat([next(batches)["x"] for _ in range(3)]).equal(torch.arange(150))
    with pytest.raises(DataError, match="row 151"):
        next(batches)


def test_working_ahead_is_bounded_and_stops() -> None:
    made: list[int] = []

    def make(job: int) -> int:
        made.append(job)
        if job == 6:
            raise ValueError("six")
        return job

    ahead = Ahead(make, range(100), depth=2)
    time.sleep(0.05)
    assert len(made) <= 3
    assert [next(ahead) for _ in range(6)] == list(range(6))
    for _ in range(2):  # the error stays; nothing hangs
        with pytest.raises(ValueError, match="six"):
            next(ahead)
    ahead.close()
    endless = Ahead(lambda job: job, iter(int, 1), depth=2)
    endless.close()
    with pytest.raises(StopIteration):
        next(endless)


def test_wrong_requests_are_said() -> None:
    data = digits()
    for attempt, message in (
        (lambda: feed(data, "residant", 8, "cpu"), "did you mean 'resident'"),
        (lambda: feed(data, "resident", 0, "cpu"), "batch .* 1 or more, got 0"),
        (lambda: EvalFeed(data.train, (), 8, "cpu", "streamd"), "unknown tier"),
        (lambda: PinnedFeed(data.train, data.sampler(0), feed_options(8, "cpu")).next(9), "batches of 8"),
    ):
        with pytest.raises(UsageError, match=message):
            _call(attempt)


def _call(attempt: Any) -> None:
    attempt()
