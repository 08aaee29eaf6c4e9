"""fo.loader in anyone's own loop, the threads behind it, and the processes beside it: always the same batches, bit for bit."""

from __future__ import annotations

import gc
import itertools
import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from flatout.base.errors import DataError, UsageError
from flatout.data import Data, arrays, digits
from flatout.data.feeds import feed as feeds
from flatout.data.feeds.ahead import THREAD_NAME, Ahead
from flatout.data.feeds.feed import feed_options
from flatout.data.feeds.loader import Loader, loader
from flatout.data.feeds.pinned import PinnedFeed
from flatout.data.feeds.ranks import EpochShare
from flatout.data.feeds.slots import Slots
from flatout.data.feeds.tuning import ReadingBudget
from flatout.data.order.keyed import Keys, Order
from flatout.data.source import Batch, Column, Schema, Source
from flatout.data.sources.datasets.dataset import dataset
from flatout.data.sources.texts.sequences import sequences

AUGMENT = ["flip", {"crop": 2}, {"cutout": 3}]


def _same(first: Batch, second: Batch) -> bool:
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def _threads() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())


def _settle(threads: int) -> int:
    """Threads that were told to end do so shortly after."""
    for _ in range(200):
        if _threads() <= threads:
            break
        time.sleep(0.01)
    return _threads()


class Scattered(Source):
    """Not in memory: reads take longer or shorter, as files do. Row r has 1 + 7r mod 13 items end to end with the others'."""

    def __init__(self, rows: int, broken: int | None = None) -> None:
        self._rows, self._broken = rows, broken
        self.reads = 0

    @property
    def schema(self) -> dict[str, Column]:
        number = Column(torch.int64, ())
        return {"items": Column(torch.uint8, (), ragged=6.9), "start": number, "length": number, "name": number}

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Tensor) -> Batch:
        self.reads += 1
        time.sleep(0.0002 * (self.reads % 5))
        if self._broken is not None and bool((rows == self._broken).any()):
            raise DataError(f"row {self._broken} is torn")
        length = rows * 7 % 13 + 1
        items = torch.cat([torch.arange(int(n)) * 3 + row for row, n in zip(rows, length, strict=True)]).to(torch.uint8)
        return {"items": items, "start": length.cumsum(0) - length, "length": length, "name": rows.clone()}

    def fingerprint(self) -> str:
        return f"scattered-{self._rows}"


class Pack:
    """The first transform of ragged data: rows of one size, with noise by key."""

    def describe(self, schema: Schema) -> dict[str, Column]:
        return {"x": Column(torch.float32, (2,)), "name": schema["name"]}

    def __call__(self, batch: Batch, keys: Keys) -> Batch:
        last = batch["start"] + batch["length"] - 1
        ends = torch.stack([batch["items"][batch["start"]], batch["items"][last]], dim=1).float()
        return {"x": ends + keys.uniform("noise", 2), "name": batch["name"]}

    def written(self) -> Any:
        return "pack"


def _scattered(rows: int = 230, broken: int | None = None) -> Data:
    return Data(train=Scattered(rows, broken), prepare=(Pack(),))


def _numbers(rows: int = 1000) -> Data:
    return arrays(torch.arange(rows), classes=None)


# one process


@pytest.mark.parametrize("tier", ["resident", "pinned"])
def test_a_loop_is_an_epoch_and_the_next_has_another_order(tier: str) -> None:
    served = loader((np.arange(1000), np.arange(1000) % 7), 64, device="cpu", tier=tier)
    assert len(served) == 16
    epochs = [[batch["x"] for batch in served] for _ in range(3)]
    for epoch in epochs:
        assert [len(x) for x in epoch] == [64] * 15 + [40]
        assert torch.cat(epoch).sort().values.equal(torch.arange(1000))
    assert not torch.cat(epochs[0]).equal(torch.cat(epochs[1])) and not torch.cat(epochs[1]).equal(torch.cat(epochs[2]))
    assert torch.cat([torch.cat(epoch) for epoch in epochs]).equal(Order(0, (1000,)).rows(0, 3000))
    served.set_epoch(1)
    assert all(a.equal(b["x"]) for a, b in zip(epochs[1], served, strict=True))
    other = loader(_numbers(), 64, device="cpu", tier=tier, seed=1)
    assert not next(iter(other))["x"].equal(epochs[0][0])


def test_drop_last_leaves_out_the_short_batch_of_every_epoch() -> None:
    served = loader(_numbers(), 64, device="cpu", drop_last=True)
    assert len(served) == 15
    rows = [torch.cat([batch["x"] for batch in served]) for _ in range(2)]
    order = Order(0, (1000,))
    assert rows[0].equal(order.rows(0, 960)) and rows[1].equal(order.rows(1000, 1960))
    with pytest.raises(UsageError, match="leaves no batch: there are 1000 rows, and a batch takes 1001"):
        loader(_numbers(), 1001, device="cpu", drop_last=True)
    assert [len(batch["x"]) for batch in loader(_numbers(), 1001, device="cpu")] == [1000]


def test_the_validation_part_comes_prepared_in_its_order() -> None:
    data = digits(normalize="auto", augment=AUGMENT)
    assert data.validation is not None
    served = loader(data, 100, device="cpu", part="validation")
    for _ in range(2):
        assert torch.cat([batch["y"] for batch in served]).equal(data.validation.read(torch.arange(359))["y"])
    with pytest.raises(DataError, match="no validation part"):
        loader(_numbers(), 8, part="validation")


def test_wrong_arguments_are_said() -> None:
    attempts: list[tuple[Callable[[], Any], str]] = [
        (lambda: loader(_numbers(), 0), "1 or more, got 0"),
        (lambda: loader(_numbers(), 2.0), "1 or more, got 2.0"),  # type: ignore[arg-type]
        (lambda: loader(_numbers(), 8, tier="pined"), "did you mean 'pinned'"),
        (lambda: loader(_numbers(), 8, part="validatoin"), "did you mean 'validation'"),
        (lambda: loader(_numbers(), 8, rank=1), "rank=1, world=None"),
        (lambda: loader(_numbers(), 8, rank=2, world=2), "rank=2, world=2"),
        (lambda: loader(_numbers(), 8, device="cpu", tier="pinned", workers=-1), "a number of reading threads"),
        (lambda: loader(_numbers(), 8, device="cpu", workers=-1), "a number of reading threads"),
        (lambda: loader(_numbers(), 8, workers=True), "a number of reading threads, 0 for none, got True"),
        (lambda: loader(_numbers(), 8, workers=None), "a number of reading threads, 0 for none, got None"),  # type: ignore[arg-type]
        (lambda: loader(_numbers(), 8, workers="many"), "workers must be 'auto' or a number .* got 'many'"),
        (lambda: loader(_numbers(), 8, prefetch=0), "1 or more, got 0; 'auto'"),
        (lambda: loader(_numbers(), 8, prefetch=-2), "1 or more, got -2$"),
        (lambda: loader(_numbers(), 8, prefetch=True), "1 or more, got True$"),
        (lambda: loader(_numbers(), 8, prefetch=None), "1 or more, got None$"),  # type: ignore[arg-type]
        (lambda: loader(_numbers(), 8, prefetch="deep"), "prefetch must be 'auto' or a number .* got 'deep'"),
        (lambda: loader(_numbers(), 8, device="cpu").set_epoch(-1), "epoch must be 0 or more, got -1"),
        (lambda: loader("numbers.csv", 8), "a dict of columns or a pair"),
        (lambda: loader({"y": [1, 2]}, 8), "needs a column 'x'"),
    ]
    for attempt, message in attempts:
        with pytest.raises((UsageError, DataError), match=message):
            attempt()


# leaving a loop, and going on


@pytest.mark.parametrize("workers", [0, 3])
def test_a_loop_left_early_is_followed_by_the_next_epoch_and_leaks_no_threads(workers: int) -> None:
    before = _settle(0)
    with loader(_scattered(), 20, device="cpu", workers=workers) as served:
        reference = [[batch["name"] for batch in served] for _ in range(4)]
        served.set_epoch(0)
        for number, batch in enumerate(served):
            assert batch["name"].equal(reference[0][number])
            if number == 4:
                break
        for epoch in (1, 2, 3):
            got = [batch["name"] for batch in served]
            assert all(a.equal(b) for a, b in zip(got, reference[epoch], strict=True))
            assert _threads() - before <= workers
    assert _threads() == before
    assert len(next(iter(served))["name"]) == 20  # a closed loader starts again
    del served, batch
    gc.collect()
    assert _settle(before) == before  # and one that is forgotten ends by itself


def test_a_second_loop_ends_the_first_with_words() -> None:
    served = loader(_numbers(), 64, device="cpu")
    first, second = iter(served), iter(served)
    next(first), next(second)
    with pytest.raises(UsageError, match="another loop over this loader"):
        next(first)


@pytest.mark.parametrize(("tier", "workers"), [("resident", "auto"), ("pinned", 0), ("pinned", 1), ("pinned", 3)])
@pytest.mark.parametrize("data", [digits(augment=AUGMENT), digits(draw="balanced", augment=AUGMENT)], ids=["shuffle", "draw"])
def test_a_state_from_any_point_goes_on_exactly(data: Data, tier: str, workers: int | str) -> None:
    def fresh() -> Loader:
        return loader(data, 300, device="cpu", tier=tier, seed=3, workers=workers)

    straight, states = fresh(), []
    served = []
    for _ in range(2):
        for batch in straight:
            served.append(batch)
            states.append(json.loads(json.dumps(straight.state_dict())))
    assert (states[0]["epoch"], states[0]["samples"]) == (0, 300) and (states[-1]["epoch"], states[-1]["samples"]) == (2, 0)
    for at in range(0, len(states) - 1, 2):
        with fresh() as resumed:
            resumed.load_state_dict(states[at])
            resumed.set_epoch(states[at]["epoch"])  # as a loop over epochs does; the place within this one stays
            rest = list(resumed)
            assert rest and all(_same(a, b) for a, b in zip(rest, served[at + 1 :], strict=False))
            assert resumed.state_dict() == {**states[at], "epoch": states[at]["epoch"] + 1, "samples": 0}
    straight.close()


def test_a_state_of_something_else_is_refused_with_words() -> None:
    data = _numbers()
    state = loader(data, 64, device="cpu").state_dict()
    served = loader(data, 64, device="cpu", seed=2)
    with pytest.raises(UsageError, match=r"seed=0, .* seed=2: make the loader with seed=0"):
        served.load_state_dict(state)
    with pytest.raises(UsageError, match="the state is of other data"):
        loader(_numbers(999), 64, device="cpu").load_state_dict(state)
    with pytest.raises(UsageError, match="state of a loader: 'samples' is missing in epoch"):
        served.load_state_dict({"epoch": 1})
    other_size = loader(data, 50, device="cpu")
    with pytest.raises(UsageError, match="192 samples into epoch 0, where no batch of 50 rows ends"):
        other_size.load_state_dict({**state, "samples": 192})
    other_size.load_state_dict({**state, "samples": 200})
    assert next(iter(other_size))["x"].equal(Order(0, (1000,)).rows(200, 250))


# several processes


@pytest.mark.parametrize("rows", [1000, 1024, 1001, 37, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_ranks_together_see_the_batches_of_one_process(rows: int, world: int) -> None:
    data = arrays(torch.arange(rows), augment=())
    one = loader(data, 16 * world, device="cpu", seed=5)
    ranks = [loader(data, 16, device="cpu", seed=5, rank=rank, world=world) for rank in range(world)]
    assert {len(part) for part in ranks} == {len(one)}
    for _ in range(2):
        order = torch.cat([batch["x"] for batch in one])
        batches = [[batch["x"] for batch in part] for part in ranks]
        for number in range(len(one)):
            parts = [batches[rank][number] for rank in range(world)]
            assert len({len(part) for part in parts}) == 1  # nobody waits for a longer one
            together, start = torch.cat(parts), number * 16 * world
            expected = order[start : start + 16 * world]
            assert together[: len(expected)].equal(expected)
            filled = together[len(expected) :]
            assert len(filled) < world and filled.equal(order.repeat(world)[: len(filled)])


@pytest.mark.parametrize(("rows", "world", "batch"), [(200_003, 3, 512), (100_000, 2, 20_000), (70_001, 64, 300)])
def test_a_share_of_a_long_order_is_that_of_its_stretches(rows: int, world: int, batch: int) -> None:
    order, rank = Order(2, (rows,)), world - 1
    share = EpochShare(order, batch, rank, world, drop_last=False)
    whole, rest = divmod(rows, batch * world)
    starts = [number * batch * world + rank * batch for number in range(whole)]
    one_epoch = [order.rows(start, start + batch) for start in starts]
    last = -(-rest // world)
    tail = order.rows(whole * batch * world, rows)
    one_epoch.append(torch.cat([tail, order.rows(0, world)])[rank * last : (rank + 1) * last])
    expected = torch.cat(one_epoch)
    assert share.epoch_rows == len(expected)
    assert share.rows(0, share.epoch_rows).equal(expected)
    begin, end = share.epoch_rows // 3, share.epoch_rows + 7  # into the next epoch
    assert share.rows(begin, end)[: share.epoch_rows - begin].equal(expected[begin:])
    assert share.visits(begin, end).equal((torch.arange(begin, end) >= share.epoch_rows).long())


def test_ranks_without_the_last_batch_and_with_other_samplers_and_augmentation() -> None:
    data = digits(draw="balanced", augment=AUGMENT)
    one = list(loader(data, 64, device="cpu", drop_last=True))
    ranks = [list(loader(data, 16, device="cpu", drop_last=True, rank=rank, world=4, tier="pinned")) for rank in range(4)]
    assert len(one) == len(ranks[0]) == 1438 // 64
    for number, batch in enumerate(one):
        assert _same(batch, {name: torch.cat([part[number][name] for part in ranks]) for name in batch})


def test_a_state_serves_every_rank_and_another_number_of_them() -> None:
    data = _numbers()
    saved = loader(data, 32, device="cpu", rank=1, world=2)
    loop = iter(saved)
    next(loop), next(loop)
    state = saved.state_dict()
    assert state["samples"] == 128
    rest = []
    for rank in range(4):
        part = loader(data, 16, device="cpu", rank=rank, world=4)
        part.load_state_dict(state)
        rest.append(next(iter(part))["x"])
    assert torch.cat(rest).equal(Order(0, (1000,)).rows(128, 192))


def test_torchruns_variables_say_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    expected = loader(_numbers(), 10, device="cpu", rank=1, world=2)
    assert _same(next(iter(loader(_numbers(), 10, device="cpu"))), next(iter(expected)))
    assert len(loader(_numbers(), 10, device="cpu", rank=0, world=1)) == 100  # what is said goes before
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(UsageError, match="RANK must be a whole number, got 'one'"):
        loader(_numbers(), 10)


# threads that read


@pytest.mark.parametrize("epoch_rows", [None, 230])
def test_every_worker_count_depth_and_seek_give_equal_bits(epoch_rows: int | None) -> None:
    data = _scattered()

    def feed(budget: ReadingBudget | None = None, **given: Any) -> PinnedFeed:
        options = replace(feed_options(16, "cpu", data.prepare, 1, **given), epoch_rows=epoch_rows)
        return PinnedFeed(data.train, data.sampler(1), options, budget=budget)

    def sizes() -> Iterator[int]:
        position = 0
        for turn in range(45):
            left = 16 if epoch_rows is None else min(16, epoch_rows - position % epoch_rows)
            size = min(5, left) if turn in (10, 11, 30) else left
            position += size
            yield size

    reference = feed(workers=0)
    expected = [reference.next(size) for size in sizes()]
    end = reference.position
    for options in (
        {"workers": 1, "prefetch": 1},
        {"workers": 2},
        {"workers": 5, "prefetch": 3},
        {"workers": 4, "prefetch": 11},
        {"budget": ReadingBudget(4, 10**6)},
    ):
        served = feed(**options)
        for turn, size in enumerate(sizes()):
            assert _same(served.next(size), expected[turn]), f"{options}, batch {turn}"
        assert served.position == end
        for position in (0, 33, 230 * 3 + 7):
            served.seek(position)
            reference.seek(position)
            for _ in range(3):
                size = next(sizes()) if epoch_rows is None else min(16, epoch_rows - served.position % epoch_rows)
                assert _same(served.next(size), reference.next(size)), f"{options}, from {position}"
        stats = served.stats()
        assert stats["rows_read"] > 0 and stats["read_rows_per_s_per_thread"] > 0 and 0 <= stats["wait_share"] <= 1
        assert json.loads(json.dumps(stats)) == stats
        served.close()


def test_resizing_while_it_runs_changes_nothing_of_what_is_served() -> None:
    data = _scattered()
    steady = PinnedFeed(data.train, data.sampler(0), feed_options(10, "cpu", data.prepare, workers=0))
    resized = PinnedFeed(data.train, data.sampler(0), feed_options(10, "cpu", data.prepare, workers=1))
    for turn in range(60):
        assert _same(steady.next(), resized.next())
        assert resized._ahead is not None
        if turn % 7 == 3:
            resized._ahead.resize(workers=1 + turn % 4, depth=1 + turn % 6)
    resized.close()


def test_what_is_in_memory_is_read_without_threads_on_a_cpu() -> None:
    class InMemory(Scattered):
        @property
        def in_memory(self) -> bool:
            return True

    before = _settle(0)
    slow = PinnedFeed(Scattered(100), Order(0, (100,)), feed_options(10, "cpu"), budget=ReadingBudget(4, 10**6))
    slow.next()
    assert slow.workers == 4 and _threads() > before
    slow.close()
    quick = PinnedFeed(InMemory(100), Order(0, (100,)), feed_options(10, "cpu"), budget=ReadingBudget(4, 10**6))
    quick.next()
    assert quick.workers == 0 and _threads() == before


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_an_error_of_the_source_arrives_with_the_batch_it_is_in(workers: int) -> None:
    broken = int(Order(0, (230,)).rows(100, 101))
    with loader(_scattered(broken=broken), 20, device="cpu", workers=workers) as served:
        loop = iter(served)
        for number in range(5):
            assert next(loop)["name"].equal(Order(0, (230,)).rows(20 * number, 20 * number + 20))
        with pytest.raises(DataError, match=f"row {broken} is torn"):
            next(loop)
        assert served.state_dict()["samples"] == 100
    assert _settle(0) == 0


def test_a_program_that_ends_in_the_middle_of_a_loop_ends_well() -> None:
    script = """
import time, torch
from flatout.data.source import Column, Source
from flatout.data.data import Data
from flatout.data.feeds.feed import feed_options
from flatout.data.feeds.loader import loader
class Slow(Source):
    schema = {"x": Column(torch.float32, (64,))}
    def __len__(self): return 10_000
    def fingerprint(self): return "0"
    def read(self, rows): return {"x": torch.stack([torch.rand(64).sort().values for _ in rows])}
for batch in loader(Data(train=Slow()), 100, device="cpu", workers=3):
    break
print("left", flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left\n", "")


def test_a_cache_serves_the_next_loader_and_a_closed_one_goes_on(tmp_path: Path) -> None:
    expected = [batch["x"] for batch in loader(_scattered(), 20, device="cpu", tier="streamed", workers=2)]
    for _ in range(2):
        data = _scattered()
        source: Any = data.train
        with loader(data, 20, device="cpu", tier="mapped", cache=tmp_path / "rows", workers=2) as served:
            assert all(batch["x"].equal(x) for batch, x in zip(served, expected, strict=True))
        served.set_epoch(0)
        assert all(batch["x"].equal(x) for batch, x in zip(served, expected, strict=True))
        served.close()
    assert source.reads <= 1  # the second found all of it in the cache, but for the row that transforms are tried on
    with pytest.raises(UsageError, match=r"tier mapped needs .*: set cache"):
        loader(_scattered(), 20, device="cpu", tier="mapped")


def test_a_cache_stays_within_its_budget_and_is_compressed_as_asked(tmp_path: Path) -> None:
    expected = [batch["x"] for batch in loader(_scattered(), 20, device="cpu", tier="streamed")]

    def bytes_after(folder: str, **options: Any) -> tuple[int, list[str]]:
        given: dict[str, Any] = {"device": "cpu", "tier": "mapped", "cache": tmp_path / folder, **options}
        with loader(_scattered(), 20, **given) as served:
            assert all(batch["x"].equal(x) for batch, x in zip(served, expected, strict=True))
        size = sum(path.stat().st_size for path in (tmp_path / folder).rglob("*") if path.is_file())
        return size, served.degraded  # rows are put into the cache after they are served: all is said once it is closed

    whole, said = bytes_after("whole")
    assert not said
    small, said = bytes_after("small", disk_budget="1 kB")
    assert small < whole and any("takes no more rows" in why for why in said)
    bytes_after("packed", cache_compression="zstd")
    with pytest.raises(UsageError, match="unknown compression 'zip'"):
        loader(_scattered(), 20, device="cpu", tier="mapped", cache=tmp_path / "x", cache_compression="zip")


def test_rows_that_do_not_fit_on_the_device_come_from_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(loader(_numbers(), 64, device="cpu", tier="resident"))

    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 80.00 GiB")

    monkeypatch.setattr(feeds, "ResidentFeed", full)
    with loader(_numbers(), 64, device="cpu", tier="resident") as served:
        assert all(_same(a, b) for a, b in zip(served, expected, strict=True))
        assert len(served.degraded) == 1 and "80.00 GiB" in served.degraded[0]


# other kinds of data


class Squares(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 90

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return torch.tensor([number, number * number]), number % 3


class Noise(Squares):
    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return torch.tensor([float(number), torch.rand(()).item()]), number % 3


class Counting(IterableDataset[Tensor]):
    def __init__(self, end: int | None) -> None:
        self._end = end

    def __iter__(self) -> Iterator[Tensor]:
        return map(torch.tensor, itertools.count() if self._end is None else range(self._end))


@pytest.mark.parametrize("tier", ["auto", "streamed", "pinned", "resident"])
def test_a_dataset_comes_in_the_order_of_every_other_data(tier: str) -> None:
    data = dataset(Squares(), processes=False, workers=2)
    with loader(data, 16, device="cpu", tier=tier, seed=4) as served:
        for _ in range(2):
            for batch in served:
                assert batch["x"][:, 1].equal(batch["x"][:, 0] ** 2) and batch["y"].equal(batch["x"][:, 0] % 3)
        rows = torch.cat([batch["x"][:, 0] for batch in served])
    assert rows.equal(Order(4, (90,)).rows(180, 270))


def test_random_samples_of_a_dataset_are_new_in_each_epoch_and_the_same_in_each_run() -> None:
    def epochs() -> list[Tensor]:
        with loader(dataset(Noise(), processes=False), 16, device="cpu") as served:
            assert served.stats()["workers"] == 0  # they draw from the generators of this process
            return [torch.cat([batch["x"] for batch in served]) for _ in range(2)]

    first, again = epochs(), epochs()
    assert first[0].equal(again[0]) and first[1].equal(again[1])
    by_row = [epoch[epoch[:, 0].argsort()] for epoch in first]
    assert by_row[0][:, 0].equal(by_row[1][:, 0]) and not by_row[0].equal(by_row[1])


def test_an_iterable_with_a_length_has_epochs_and_goes_on_from_a_state() -> None:
    def fresh(**options: Any) -> Loader:
        return loader(dataset(Counting(50), processes=False, length=50), 16, device="cpu", **options)

    with fresh() as served, fresh() as resumed:
        assert len(served) == 4
        for _ in range(2):
            assert torch.cat([batch["x"] for batch in served]).equal(torch.arange(50))
        loop = iter(served)
        next(loop)
        state = json.loads(json.dumps(served.state_dict()))
        resumed.load_state_dict(state)
        assert [batch["x"][0].item() for batch in resumed] == [16, 32, 48]
        assert [batch["x"][0].item() for batch in resumed] == [0, 16, 32, 48]
    with pytest.raises(UsageError, match="keeps its own order"):
        fresh(rank=0, world=2)
    with fresh(drop_last=True) as whole:
        assert [[batch["x"][0].item() for batch in whole] for _ in range(2)] == [[0, 16, 32]] * 2


def test_an_iterable_without_end_goes_on_and_on() -> None:
    with loader(dataset(Counting(None), processes=False, length=math.inf), 16, device="cpu") as served:
        with pytest.raises(TypeError, match="no length"):
            len(served)
        firsts = [batch["x"][0].item() for batch in itertools.islice(served, 10)]
        assert firsts == list(range(0, 160, 16))
        assert next(iter(served))["x"][0] == 160  # a stream that was left goes on where it was


def _sentences() -> Data:
    return sequences([[row % 250 + 1] * (1 + row * 7 % 40) for row in range(300)], vocabulary=256)


def test_a_budget_of_tokens_cuts_batches_of_like_length() -> None:
    served = loader(_sentences(), 32, device="cpu", tokens=400, seed=1)
    epochs = [list(served) for _ in range(2)]
    for epoch in epochs:
        assert len(epoch) == len(served) and all(batch["x"].numel() <= 400 and len(batch["x"]) <= 32 for batch in epoch)
        assert sum(len(batch["x"]) for batch in epoch) == 300
        assert all(int((batch["x"] > 0).sum()) == int(batch["length"].sum()) for batch in epoch)
    assert served.stats()["padding"] < 0.3
    stopped, resumed = (loader(_sentences(), 32, device="cpu", tokens=400, seed=1) for _ in range(2))
    next(iter(stopped))
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert all(_same(a, b) for a, b in zip(resumed, epochs[0][1:], strict=True))
    with pytest.raises(UsageError, match=r"400 tokens .* has 500"):
        loader(_sentences(), 32, device="cpu", tokens=500, seed=1).load_state_dict(resumed.state_dict())
    with pytest.raises(DataError, match="tokens= is for rows of differing lengths"):
        loader(_numbers(), 32, device="cpu", tokens=500)


def test_ranks_share_the_batches_of_a_budget_of_tokens() -> None:
    one = list(loader(_sentences(), 32, device="cpu", tokens=400))
    ranks = [list(loader(_sentences(), 16, device="cpu", tokens=200, rank=rank, world=2)) for rank in range(2)]
    for number, batch in enumerate(one):
        parts = [ranks[rank][number] for rank in range(2)]
        assert len(parts[0]["x"]) == len(parts[1]["x"]) and parts[0]["x"].shape == parts[1]["x"].shape
        assert torch.cat([part["x"] for part in parts])[: len(batch["x"])].equal(batch["x"])


# the work ahead


def test_pieces_arrive_in_order_whatever_they_take() -> None:
    def make(job: int) -> int:
        time.sleep(0.001 * (job * 7 % 5))
        return job * job

    for workers, depth in ((1, 1), (4, 2), (3, 9)):
        ahead = Ahead(make, range(60), depth, workers)
        assert list(ahead) == [job * job for job in range(60)]
        counters = ahead.counters
        assert counters.delivered == 60 and counters.making_s > 0
        with pytest.raises(StopIteration):
            next(ahead)
        assert _settle(0) == 0  # threads end with the jobs, before any close
        ahead.close()


def test_never_more_than_depth_pieces_ahead_nor_more_threads_than_asked() -> None:
    lock, at_work, most, begun = threading.Lock(), 0, 0, 0
    three, five = threading.Barrier(3), threading.Barrier(5)  # passed only by as many at the same time
    meeting: threading.Barrier | None = three

    def make(job: int) -> int:
        nonlocal at_work, most, begun
        with lock:
            begun += 1
            at_work += 1
            most = max(most, at_work)
        try:
            if meeting is not None:
                meeting.wait(10)
        finally:
            with lock:
                at_work -= 1
        return job

    ahead = Ahead(make, iter(int, 1), depth=6, workers=3)
    for taken in range(1, 22):
        next(ahead)
        assert begun <= taken + 6
    assert most == 3
    three.abort()
    ahead.close()
    meeting = None
    ahead = Ahead(make, iter(int, 1), depth=6, workers=3)
    next(ahead)
    ahead.resize(workers=1, depth=1)
    for _ in range(10):
        next(ahead)
    assert _settle(1) == 1
    most = 0
    for _ in range(10):
        next(ahead)
    assert most == 1
    meeting = five
    ahead.resize(workers=5, depth=8)
    for _ in range(20):
        next(ahead)
    assert most == 5
    five.abort()
    ahead.close()
    assert _threads() == 0
    with pytest.raises(UsageError, match="depth must be 1 or more, got 0"):
        ahead.resize(depth=0)


def test_the_first_error_in_order_is_the_one_that_is_raised() -> None:
    def make(job: int) -> int:
        if job == 5:
            time.sleep(0.03)  # later than the one that fails after it in the order
            raise ValueError("five")
        if job == 6:
            raise ValueError("six")
        return job

    ahead = Ahead(make, range(100), depth=8, workers=4)
    assert [next(ahead) for _ in range(5)] == list(range(5))
    for _ in range(2):
        with pytest.raises(ValueError, match="five"):
            next(ahead)
    assert _settle(0) == 0


def test_errors_of_the_jobs_themselves_and_a_stray_stop_iteration_arrive_too() -> None:
    def jobs() -> Iterator[int]:
        yield from range(3)
        raise DataError("no more jobs")

    ahead = Ahead(lambda job: job, jobs(), depth=4, workers=2)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="no more jobs"):
        next(ahead)

    def make(job: int) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(Ahead(make, range(3), depth=1))


def test_closing_does_not_wait_for_more_than_the_pieces_in_hand() -> None:
    gate = threading.Event()
    begun: list[int] = []

    def make(job: int) -> int:
        begun.append(job)
        gate.wait(10)
        return job

    ahead = Ahead(make, range(1000), depth=50, workers=2)
    while len(begun) < 2:
        time.sleep(0.001)
    closing = threading.Thread(target=ahead.close)
    closing.start()
    time.sleep(0.01)
    gate.set()
    closing.join(10)
    assert not closing.is_alive() and len(begun) <= 3 and _threads() == 0
    with pytest.raises(StopIteration):
        next(ahead)


def test_ctrl_c_ends_the_wait_and_nothing_is_lost() -> None:
    gate = threading.Event()

    def make(job: int) -> int:
        gate.wait(10)
        return job

    ahead = Ahead(make, range(3), depth=2, workers=2)
    timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(ahead)
    timer.join()
    gate.set()
    assert list(ahead) == [0, 1, 2]
    assert ahead.counters.wait_s > 0


def test_waiting_is_counted_on_the_side_that_waits() -> None:
    gate = threading.Event()
    slow = Ahead(lambda job: gate.wait(10), range(1), depth=1)
    threading.Timer(0.02, gate.set).start()
    next(slow)
    assert slow.counters.making_s > 0
    quick = Ahead(lambda job: job, range(100), depth=1)
    next(quick)
    before = quick.counters
    time.sleep(0.02)  # nobody takes: the thread waits, whoever looks meanwhile sees it
    waited = quick.counters.since(before)
    assert waited.room_wait_s > 0 and waited.wait_s == 0 and waited.delivered == 0
    quick.close()


# buffers


class Copying:
    """The event after a copy that ends when told to."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def query(self) -> bool:
        return self.done.is_set()

    def synchronize(self) -> None:
        self.done.wait(10)


def test_buffers_are_reused_and_never_while_they_are_copied_from() -> None:
    slots = Slots({"x": Column(torch.float32, (3,)), "items": Column(torch.uint8, (), ragged=6.5)}, batch=10, most=2)
    first = slots.borrow()
    assert first.take("x", 4).shape == (4, 3) and len(first.take("items", 65)) == 65
    where = first.take("items", 128).data_ptr()
    assert len(first.take("items", 129)) == 129 and first.take("items", 1).data_ptr() != where  # grown, and stays so
    where = first.take("items", 129).data_ptr()
    assert first.take("items", 200).data_ptr() == where and first.take("items", 256).data_ptr() == where
    first.copied = Copying()
    slots.give_back(first)
    second = slots.borrow()  # the first is still read by the device: another one, as long as there may be more
    assert second is not first
    second.copied = Copying()
    slots.give_back(second)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(slots.borrow()))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive() and not got  # no more than two, and both are busy
    first.copied.done.set()
    waiting.join(10)
    assert got == [first]
    slots.resize(1)
    slots.give_back(got[0])
    second.copied.done.set()
    assert slots.borrow() in (first, second)
    assert slots.nbytes <= first.nbytes


def test_replaced_data_is_other_data() -> None:
    data = digits(augment=AUGMENT)
    state = loader(data, 64, device="cpu").state_dict()
    with pytest.raises(UsageError, match="other data"):
        loader(replace(data, augment=()), 64, device="cpu").load_state_dict(state)
