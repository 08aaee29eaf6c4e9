"""On a GPU: several reading threads, ragged columns and the loader give the bits of the host, and wait for no device."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from flatout.data import arrays
from flatout.data.feeds.ahead import THREAD_NAME
from flatout.data.feeds.feed import feed_options
from flatout.data.feeds.loader import loader
from flatout.data.feeds.pinned import PinnedFeed
from flatout.data.feeds.tuning import ReadingBudget
from flatout.data.order.keyed import Order
from flatout.data.source import Batch, Column, Source


class Scattered(Source):
    """Not in memory, and each row of another length: 1 + 7r mod 1300 items."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.reads = 0

    @property
    def schema(self) -> dict[str, Column]:
        number = Column(torch.int64, ())
        return {"items": Column(torch.uint8, (), ragged=640.0), "start": number, "name": number}

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Tensor) -> Batch:
        self.reads += 1
        time.sleep(0.0005 * (self.reads % 5))
        length = rows * 7 % 1300 + 1
        start = length.cumsum(0) - length
        items = torch.arange(int(length.sum())) - start.repeat_interleave(length) + rows.repeat_interleave(length)
        return {"items": items.to(torch.uint8), "start": start, "name": rows.clone()}

    def fingerprint(self) -> str:
        return f"scattered-{self._rows}"


def _on_host(batch: Batch) -> Batch:
    return {name: column.cpu() for name, column in batch.items()}


def _same(first: Batch, second: Batch) -> bool:
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


@pytest.mark.parametrize("options", [{"workers": 1, "prefetch": 1}, {"workers": 4}, {"workers": 6, "prefetch": 13}, {}])
def test_ragged_rows_through_reused_buffers_are_those_of_the_source(options: dict[str, Any]) -> None:
    source, order = Scattered(5000), Order(0, (5000,))
    served = PinnedFeed(source, Order(0, (5000,)), feed_options(64, "cuda", **options))
    try:
        kept = []
        for turn in range(120):
            if turn % 10 == 0:
                torch.cuda._sleep(5_000_000)  # the device lags behind, and the buffers come round again
            kept.append({name: column.clone() for name, column in served.next(7 if turn == 50 else None).items()})
        position = 0
        for turn, batch in enumerate(kept):
            size = 7 if turn == 50 else 64
            assert _same(_on_host(batch), source.read(order.rows(position, position + size))), f"batch {turn}"
            position += size
        stats = served.stats()
        assert stats["copy_bytes_per_s"] > 0 and stats["buffer_bytes"] > 0 and served.degraded == []
        assert len(served._uplink.transfer.slots._all) <= served.workers + 2  # type: ignore[union-attr]
    finally:
        served.close()


def test_many_threads_never_make_the_trainer_wait_for_the_device() -> None:
    data = arrays(torch.randn(100_000, 32), torch.randint(0, 5, (100_000,)))
    served = PinnedFeed(data.train, data.sampler(0), feed_options(512, "cuda", workers=4))
    total = torch.zeros((), device="cuda")
    try:
        for _ in range(5):
            served.next()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(300):
            total += served.next()["x"].sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        served.close()
    assert torch.isfinite(total)


@pytest.mark.parametrize("tier", ["auto", "resident", "pinned"])
def test_the_loader_on_a_device_serves_what_it_serves_on_the_host(tier: str) -> None:
    data = arrays(torch.randn(3001, 7), torch.randint(0, 5, (3001,)))
    with loader(data, 100, tier=tier) as there, loader(data, 100, device="cpu") as here:
        for _ in range(2):
            for first, second in zip(here, there, strict=True):
                assert second["x"].is_cuda and _same(first, _on_host(second))
        loop = iter(there)
        for _ in range(7):
            next(loop)
        with loader(data, 100, tier=tier) as resumed:
            resumed.load_state_dict(there.state_dict())
            assert _same(next(iter(resumed)), next(loop))
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


def test_ranks_share_batches_on_a_device() -> None:
    data = arrays(torch.arange(70_001))
    one = loader(data, 3 * 512, seed=1)
    ranks = [loader(data, 512, seed=1, rank=rank, world=3) for rank in range(3)]
    for batch, *parts in zip(one, *ranks, strict=True):
        assert torch.cat([part["x"] for part in parts])[: len(batch["x"])].equal(batch["x"])


def test_tuning_stays_within_its_budget_while_it_runs() -> None:
    served = PinnedFeed(
        Scattered(5000), Order(0, (5000,)), feed_options(64, "cuda"), budget=ReadingBudget(cores=5, memory_bytes=10**8)
    )
    began_s = time.perf_counter()
    try:
        while time.perf_counter() - began_s < 3:
            served.next()
            assert 1 <= served.workers <= 5 and served.depth >= served.workers
    finally:
        served.close()
