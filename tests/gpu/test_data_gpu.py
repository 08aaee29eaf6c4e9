"""On a GPU: the samples of the host, the same bits from each tier and from a graph, and no step that waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data import Data, arrays, digits, text
from flatout.data.feeds.feed import EvalFeed, PinnedFeed, ResidentFeed, feed, feed_options
from flatout.data.order.draws import Balanced, Weighted
from flatout.data.order.keyed import Order, block_rows, floor_divide
from flatout.data.source import ArraySource, Batch

AUGMENT = ["flip", {"crop": 2}, {"crop": {"padding": 1, "mode": "zero"}}, {"cutout": 3}]


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _copy(batch: Batch) -> Batch:
    return {name: column.clone() for name, column in batch.items()}


def _same(first: Batch, second: Batch) -> bool:
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def _datasets() -> list[Data]:
    return [
        digits(augment=AUGMENT),
        digits(draw="balanced", augment=AUGMENT),
        arrays(torch.randn(5000, 3), torch.randn(5000), weight=torch.rand(5000), draw="weight", normalize="auto"),
        text("module:json", window=32),
    ]


@pytest.mark.parametrize("n", [1, 2, 49, 97, 50_000, 65_537, 1_003_598])
def test_order_is_that_of_the_host(n: int) -> None:
    for sampler in (Order(3, (n,)), Weighted(3, torch.ones(n)), Balanced(3, torch.arange(n) % 2)):
        for start, stop in ((0, 1000), (n - 1, n + 70_000)):
            rows = sampler.rows(start, stop, "cuda")
            assert rows.is_cuda and rows.cpu().equal(sampler.rows(start, stop))
            assert sampler.visits(start, stop, "cuda").cpu().equal(sampler.visits(start, stop))


def test_division_is_exact() -> None:
    for by in (*range(1, 1200), 1_003_598, 2**31 - 1):
        multiples = torch.arange(1, 200, device="cuda") * by
        assert floor_divide(multiples, by).equal(torch.arange(1, 200, device="cuda"))
        assert floor_divide(multiples - 1, by).equal(torch.arange(199, device="cuda"))


def test_windows_at_any_token_are_those_of_the_host() -> None:
    data = text("module:argparse", window=32, stride=1)
    here, there = feed(data, "resident", 512, "cpu", seed=1), feed(data, "resident", 512, "cuda", seed=1)
    for _ in range(200):
        assert _same(here.next(), {name: column.cpu() for name, column in there.next().items()})


@pytest.mark.parametrize("data", _datasets(), ids=["shuffled", "balanced", "weighted", "text"])
def test_resident_and_pinned_give_equal_bits(data: Data) -> None:
    resident, pinned = feed(data, "resident", 96, "cuda", seed=2), feed(data, "pinned", 96, "cuda", seed=2)
    try:
        for turn in range(60):
            size = 17 if turn % 20 == 19 else None  # an odd size stops and restarts the work ahead
            first, second = resident.next(size), pinned.next(size)
            assert all(column.is_cuda for column in second.values())
            assert _same(first, second), f"batch {turn}"
        pinned.seek(1234)
        resident.seek(1234)
        assert _same(resident.next(), pinned.next())
        assert pinned.degraded == []
    finally:
        pinned.close()


def test_samples_without_transforms_are_those_of_the_host() -> None:
    data = arrays(torch.randn(3000, 7), torch.randint(0, 5, (3000,)))
    here, there = feed(data, "resident", 100, "cpu"), feed(data, "resident", 100, "cuda")
    for _ in range(40):
        assert _same(here.next(), {name: column.cpu() for name, column in there.next().items()})


@pytest.mark.parametrize("data", _datasets(), ids=["shuffled", "balanced", "weighted", "text"])
def test_a_captured_batch_equals_the_eager_one(data: Data) -> None:
    eager, captured = feed(data, "resident", 64, "cuda", seed=3), feed(data, "resident", 64, "cuda", seed=3)
    assert isinstance(captured, ResidentFeed)
    captured.load(steps=7)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            captured.capture_next()
    torch.cuda.current_stream().wait_stream(stream)
    captured.load()  # the warm-up moved the cursor on the device
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = captured.capture_next()
    kept: list[Batch] = []
    with no_waiting():
        for _ in range(30):
            graph.replay()
            kept.append(_copy(static))
            captured.replayed()
    for turn, batch in enumerate(kept):
        assert _same(batch, eager.next()), f"replay {turn}"
    captured.seek(555)
    eager.seek(555)
    graph.replay()
    assert _same(static, eager.next())


@pytest.mark.parametrize("tier", ["resident", "pinned"])
@pytest.mark.parametrize("data", _datasets(), ids=["shuffled", "balanced", "weighted", "text"])
def test_next_never_waits_for_the_device(tier: str, data: Data) -> None:
    served = feed(data, tier, 1024, "cuda")
    served.next()
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    try:
        with no_waiting():
            for _ in range(block_rows(1024, torch.device("cuda")) // 1024 + 8):  # past the rows that are computed ahead
                total += served.next()["x"].sum()
    finally:
        served.close()
    assert torch.isfinite(total)


def test_reused_buffers_are_not_overwritten_while_the_device_lags() -> None:
    """A long kernel holds the consumer back; the ring wraps many times behind it."""
    data = arrays(torch.arange(200_000).view(-1, 1).expand(-1, 256).contiguous())
    served = PinnedFeed(data.train, data.sampler(0), feed_options(512, "cuda"))
    expected = Order(0, (200_000,)).rows(0, 512 * 40)
    try:
        served.next()
        seen: list[Tensor] = []
        for _ in range(39):
            torch.cuda._sleep(2_000_000)
            seen.append(served.next()["x"][:, 255].clone())
        assert torch.cat(seen).cpu().equal(expected[512:])
    finally:
        served.close()


@pytest.mark.parametrize("tier", ["resident", "pinned"])
def test_evaluation_reads_all_rows_in_order(tier: str) -> None:
    data = digits(normalize="auto")
    assert data.validation is not None
    here = list(EvalFeed(data.validation, data.prepare, 100, "cpu"))
    there = EvalFeed(data.validation, data.prepare, 100, "cuda", tier)
    for _ in range(2):
        batches = list(there)
        assert [len(batch["y"]) for batch in batches] == [100, 100, 100, 59]
        for first, second in zip(here, batches, strict=True):
            assert first["y"].equal(second["y"].cpu())
            torch.testing.assert_close(first["x"], second["x"].cpu())


def test_errors_of_the_thread_arrive_in_next(monkeypatch: pytest.MonkeyPatch) -> None:
    data = arrays(torch.arange(1000))
    served = PinnedFeed(data.train, data.sampler(0), feed_options(100, "cuda"))

    def torn(self: ArraySource, rows: Tensor, batch: Batch) -> None:
        raise DataError("a torn file")

    monkeypatch.setattr(ArraySource, "read_into", torn)
    with pytest.raises(DataError, match="a torn file"):
        served.next()
    served.close()


def test_without_pinned_memory_the_batches_are_the_same_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    data = arrays(torch.arange(1000), torch.arange(1000) % 3)
    whole = torch.empty

    def refusing(*shape: object, pin_memory: bool = False, **options: object) -> Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of page-locked memory\nmore")
        made: Tensor = whole(*shape, **options)  # type: ignore[call-overload]
        return made

    monkeypatch.setattr(torch, "empty", refusing)
    served = PinnedFeed(data.train, data.sampler(0), feed_options(100, "cuda"))
    monkeypatch.undo()
    reference = feed(data, "resident", 100, "cuda")
    try:
        assert len(served.degraded) == 1 and "out of page-locked memory" in served.degraded[0]
        for _ in range(20):
            assert _same(served.next(), reference.next())
    finally:
        served.close()
