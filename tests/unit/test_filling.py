"""Stores of rows, the source that fills them, and the choice of a tier. Whatever is stored, what is read is the source's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from ragged import KINDS, MadeUp, Sized, batches, equal
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.cache import runs
from flatout.data.cache.cache import Cache, cache_key
from flatout.data.cache.filling import FillingSource, place
from flatout.data.cache.mapped import MappedStore
from flatout.data.cache.memory import MemoryStore, RowStore, bytes_needed
from flatout.data.cache.records import RecordLayout
from flatout.data.cache.tiers import Surroundings, choose_tier
from flatout.data.offers import Take
from flatout.data.source import ArraySource, Batch, Column
from flatout.machine.host import free_host_bytes

STORES = ("memory", "mapped", "mapped lz4", "mapped zstd")


def make_store(name: str, source: MadeUp, folder: Path, part_bytes: int = 4096) -> RowStore:
    if name == "memory":
        return MemoryStore(source)
    entry = Cache(folder).build(cache_key(source), source.schema, len(source))
    assert entry is not None
    compression = name.removeprefix("mapped").strip() or "none"
    return MappedStore(entry, source, compression=compression, part_bytes=part_bytes, wait=True)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CHUNK_BYTES", 5000)  # several of them, some with a row that is longer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STORES)
def test_reads_as_the_source_does_while_it_fills_and_when_full(name: str, kind: str, tmp_path: Path) -> None:
    source, truth = MadeUp(kind), MadeUp(kind)
    filling = FillingSource(source, make_store(name, source, tmp_path))
    for rows in batches(len(truth), seed=1, count=6):  # rows that come twice in a batch; some stored, some not
        assert equal(filling.read(rows), truth.read(rows))
    for rows in batches(len(truth), seed=2):
        assert equal(filling.read(rows), truth.read(rows))
    assert filling.store is not None
    filling.store.flush()
    assert filling.complete and filling.degraded == []
    read_so_far = source.rows_read
    for rows in [*batches(len(truth), seed=3), *batches(len(truth), seed=4, count=3), torch.zeros(0, dtype=torch.int64)]:
        assert equal(filling.read(rows), truth.read(rows))
    assert source.rows_read == read_so_far
    filling.release()


@pytest.mark.parametrize("name", STORES)
def test_passes_on_what_its_source_is(name: str, tmp_path: Path) -> None:
    source = MadeUp()
    filling = FillingSource(source, make_store(name, source, tmp_path))
    assert filling.schema == source.schema and len(filling) == len(source) and filling.blocks() == source.blocks()
    assert filling.fingerprint() == source.fingerprint() and filling.stored_bytes == source.stored_bytes
    assert filling.column("y").equal(source.column("y")) and not filling.alone and filling.workers is None
    filling.release()


def test_passes_on_what_is_said_of_its_source() -> None:
    class Said(MadeUp):
        alone, workers, degraded = True, 3, ("slow today",)

    source = Said()
    filling = FillingSource(source, MemoryStore(source, free_bytes=lambda: 0))
    filling.read(torch.arange(3))
    assert filling.alone and filling.workers == 3
    assert filling.degraded[0] == "slow today" and "host memory are free" in filling.degraded[1] and len(filling.degraded) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STORES)
def test_writes_to_the_buffers_of_the_caller(name: str, kind: str, tmp_path: Path) -> None:
    source, truth = MadeUp(kind), MadeUp(kind)
    filling = FillingSource(source, make_store(name, source, tmp_path))
    rows = batches(len(source), seed=5)[0]
    expected = truth.read(rows)
    for _ in range(2):  # from the source, then from the store
        buffers = {
            column: torch.full((len(t) + 9, *t.shape[1:]), 1, dtype=t.dtype)
            if source.schema[column].ragged is not None
            else torch.empty_like(t)
            for column, t in expected.items()
        }
        filling.read_into(rows, buffers)
        assert equal({column: t[: len(expected[column])] for column, t in buffers.items()}, expected)
        assert all((t[len(expected[column]) :] == 1).all() for column, t in buffers.items())
        taken: list[tuple[str, int]] = []

        def take(column: str, length: int, taken: list[tuple[str, int]] = taken) -> Tensor:
            taken.append((column, length))
            return torch.empty_like(expected[column])

        assert equal(filling.read_with(rows, take), expected)
        assert sorted(taken) == sorted((column, len(t)) for column, t in expected.items())
        assert filling.store is not None
        filling.store.flush()
    filling.release()


def test_a_buffer_that_is_too_short_is_named() -> None:
    source = MadeUp()
    filling = FillingSource(source, MemoryStore(source))
    rows = torch.arange(20, 30)
    buffers = {name: torch.empty_like(column[:9] if name == "pixels" else column) for name, column in source.read(rows).items()}
    for _ in range(2):
        with pytest.raises(UsageError, match=r"the buffer for 'pixels' holds 9 items, this batch has \d+"):
            filling.read_into(rows, buffers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STORES)
def test_a_full_store_can_become_resident(name: str, kind: str, tmp_path: Path) -> None:
    for source in (MadeUp(kind), Sized(kind)):
        filling = FillingSource(source, make_store(name, source, tmp_path))
        filling.read(torch.tensor([7, 3, 100]))
        stored = filling.stored()
        assert filling.complete
        rows = batches(len(source), seed=6)[0]
        got, expected = filling.gather(stored, rows), source.read(rows)
        for column, written in source.schema.items():
            if written.ragged is None and column != "start":
                assert got[column].equal(expected[column])
        for column in (c for c, written in source.schema.items() if written.ragged is not None):
            for place_in_batch, row in enumerate(rows.tolist()):
                begins = int(got["start"][place_in_batch]), int(expected["start"][place_in_batch])
                one, other = (t[column][b : b + source.size(row)] for t, b in zip((got, expected), begins, strict=True))
                assert one.equal(other)
        again = batches(len(source), seed=7)[0]
        assert equal(filling.read(again), source.read(again))  # the store still serves
        filling.release()


def test_a_source_that_writes_where_it_is_told_does_so_here_too() -> None:
    class Writes(MadeUp):
        def read_with(self, rows: Tensor, take: Take) -> Batch:
            return {name: take(name, len(column)).copy_(column) for name, column in super().read(rows).items()}

    source, truth = Writes(), MadeUp()
    filling = FillingSource(source, MemoryStore(source))
    rows = torch.arange(40, 60)
    buffers = truth.read(rows)
    for column in buffers.values():
        column.fill_(1)
    for _ in range(2):
        got = filling.read_with(rows, lambda name, length: buffers[name][:length])
        assert equal(got, truth.read(rows)) and all(got[name].data_ptr() == buffers[name].data_ptr() for name in got)
    for column in buffers.values():
        column.fill_(1)  # reused by the caller: the store has its own
    assert equal(filling.read(rows), truth.read(rows)) and source.rows_read == 20


@pytest.mark.parametrize("name", STORES)
def test_a_row_is_put_once(name: str, tmp_path: Path) -> None:
    source = MadeUp("photos", rows=4)
    store = make_store(name, source, tmp_path)
    rows = torch.tensor([1, 2, 1])
    store.put(rows, source.read(rows))
    other = {column: t + 1 if column == "y" else t for column, t in source.read(rows).items()}
    store.put(rows, other)
    store.flush()
    assert store.has(torch.arange(4)).tolist() == [False, True, True, False] and not store.complete
    assert equal(store.read(rows), source.read(rows))
    with pytest.raises(UsageError, match="2 of 4 rows are not in the store yet"):
        store.stored()
    store.close()


def test_what_is_not_stored_is_not_read(tmp_path: Path) -> None:
    store = make_store("mapped", MadeUp(), tmp_path)
    with pytest.raises(UsageError, match=r"row 5 is not in the store: ask has\(\) first"):
        store.read(torch.tensor([5]))
    store.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STORES)
def test_threads_read_and_fill_at_once(name: str, kind: str, tmp_path: Path) -> None:
    source, truth = MadeUp(kind), MadeUp(kind)
    filling = FillingSource(source, make_store(name, source, tmp_path))
    wrong: list[int] = []

    def work(seed: int) -> None:
        for rows in batches(len(source), seed):
            if not equal(filling.read(rows), truth.read(rows)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert filling.store is not None
    filling.store.flush()
    assert wrong == [] and filling.complete
    filling.release()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_a_bounded_store_keeps_what_fits(kind: str, share: float) -> None:
    source, truth = MadeUp(kind), MadeUp(kind)
    filling = FillingSource(source, MemoryStore(source, round(share * bytes_needed(source))))
    for seed in range(3):
        for rows in batches(len(source), seed):
            assert equal(filling.read(rows), truth.read(rows))
    assert filling.store is not None and not filling.complete
    kept = int(filling.store.has(torch.arange(len(source))).sum())
    assert 0.5 * share * len(source) - 1 <= kept <= share * len(source)
    assert filling.degraded == []  # as it was asked for
    assert source.rows_read == 3 * len(source) - 2 * kept


def test_rows_longer_than_estimated_stop_at_the_limit_and_say_so() -> None:
    class Longer(MadeUp):
        @property
        def schema(self) -> dict[str, Column]:
            return {**super().schema, "pixels": Column(torch.uint8, (), ragged=30)}

    source, truth = Longer("photos"), MadeUp("photos")
    filling = FillingSource(source, MemoryStore(source, bytes_needed(source)))
    for seed in range(2):
        for rows in batches(len(source), seed):
            assert equal(filling.read(rows), truth.read(rows))
    assert filling.store is not None and 0 < int(filling.store.has(torch.arange(200)).sum()) < 200
    (why,) = filling.degraded
    assert "takes no more rows (its limit of" in why and "read from the source every time" in why


def test_memory_that_runs_short_stops_the_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10**15, 10**15, 0]
    source = MadeUp("photos", rows=400)
    monkeypatch.setattr("flatout.data.cache.memory.CHUNK_BYTES", 5000)
    store = MemoryStore(source, free_bytes=lambda: free.pop(0) if len(free) > 1 else free[0])
    filling = FillingSource(source, store)
    for seed in range(2):
        for rows in batches(len(source), seed):
            assert equal(filling.read(rows), source._made(rows))
    assert 0 < int(store.has(torch.arange(400)).sum()) < 400
    (why,) = filling.degraded
    assert "only 0 B of host memory are free" in why


def test_free_memory_heeds_the_container(tmp_path: Path) -> None:
    unlimited = free_host_bytes(tmp_path)
    for name, content in (("memory.max", "5000"), ("memory.current", "3000"), ("memory.stat", "anon 9\ninactive_file 700")):
        (tmp_path / name).write_text(content)
    assert free_host_bytes(tmp_path) == 2700 < unlimited
    (tmp_path / "memory.max").write_text("max\n")
    assert free_host_bytes(tmp_path) > 2700


def test_a_row_of_another_size_than_announced_is_kept_too() -> None:
    class StandsIn(Sized):
        def size(self, row: int) -> int:
            return super().size(5 if row == 9 and self.rows_read else row)  # known only once it was read

    source, truth = StandsIn(), StandsIn()
    store = MemoryStore(source)
    truth.rows_read = 1
    assert source.sizes[9] != truth.sizes[9]
    filling = FillingSource(source, store)
    for seed in range(2):
        for rows in batches(len(source), seed):
            assert equal(filling.read(rows), truth.read(rows))
    assert filling.complete and filling.degraded == []
    got, row_9 = store.stored(), truth.read(torch.tensor([9]))["pixels"]
    begin = int(got["start"][9])
    assert got["pixels"][begin : begin + len(row_9)].equal(row_9)


def test_stand_ins_are_kept_for_the_run_but_not_in_the_cache(tmp_path: Path) -> None:
    class WithStandIns(MadeUp):
        def stand_ins(self, rows: Tensor) -> Tensor:
            return rows % 50 == 7

    for name, expected in (("memory", 200), ("mapped", 196)):
        source = WithStandIns()
        filling = FillingSource(source, make_store(name, source, tmp_path))
        for rows in batches(len(source), seed=1):
            filling.read(rows)
        assert filling.store is not None
        filling.store.flush()
        here = filling.store.has(torch.arange(200))
        assert int(here.sum()) == expected and (name == "memory" or not here[7::50].any())
        filling.release()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            lambda batch: {**batch, "y": batch["y"].int()},
            "column 'y' as torch.int32 of shape \\[4\\]; its schema says torch.int64",
        ),
        (lambda batch: {**batch, "y": batch["y"][:3]}, "column 'y' as torch.int64 of shape \\[3\\]"),
        (lambda batch: {k: v for k, v in batch.items() if k != "y"}, "its schema has height, pixels, start, y"),
        (lambda batch: {**batch, "start": batch["start"].flip(0)}, "'start' does not rise from 0"),
        (lambda batch: {**batch, "start": batch["start"] + 1}, "'start' does not rise from 0"),
        (lambda batch: {**batch, "pixels": batch["pixels"][:2]}, "'start' does not rise from 0"),
    ],
)
@pytest.mark.parametrize("name", ["memory", "mapped"])
def test_a_source_that_breaks_its_schema_is_found_out(name: str, harm: object, said: str, tmp_path: Path) -> None:
    class Breaks(MadeUp):
        def read(self, rows: Tensor) -> Batch:
            return harm(super().read(rows))  # type: ignore[operator, no-any-return]

    source = Breaks()
    filling = FillingSource(source, make_store(name, source, tmp_path))
    with pytest.raises(DataError, match=said):
        filling.read(torch.tensor([4, 9, 2, 6]))
    filling.release()


def test_ragged_columns_need_a_start() -> None:
    with pytest.raises(UsageError, match=r"ragged columns \(x\) need a column 'start'.*; got none"):
        RecordLayout.of({"x": Column(torch.uint8, (), ragged=3.0)})


def test_place_wraps_what_is_not_in_memory(tmp_path: Path) -> None:
    source = MadeUp()
    assert place(source, "resident") is source and place(source, "streamed") is source
    bounded, pinned, mapped = (
        place(source, "streamed", limit_bytes=9000),
        place(source, "pinned"),
        place(source, "mapped", Cache(tmp_path)),
    )
    rows = torch.arange(50)
    for placed, store in ((bounded, MemoryStore), (pinned, MemoryStore), (mapped, MappedStore)):
        assert isinstance(placed, FillingSource) and isinstance(placed.store, store)
        for _ in range(2):
            assert equal(placed.read(rows), source.read(rows))
        placed.release()
    with pytest.raises(UsageError, match="did you mean 'mapped'"):
        place(source, "maped")
    with pytest.raises(UsageError, match="tier mapped needs a cache folder"):
        place(source, "mapped")


def test_rows_that_turn_out_to_vary_are_not_served_again() -> None:
    class Varies(MadeUp):
        varies = False

        def read(self, rows: Tensor) -> Batch:
            batch = super().read(rows)
            return {**batch, "y": batch["y"] + self.rows_read} if self.varies else batch

    source = Varies()
    filling = place(source, "pinned")
    rows = torch.arange(30)
    first = filling.read(rows)
    assert equal(filling.read(rows), first) and source.rows_read == 30
    source.varies = True
    assert not equal(filling.read(rows), first) and source.rows_read == 60
    assert place(source, "pinned") is source


def test_place_leaves_alone_what_is_in_memory(tmp_path: Path) -> None:
    source = ArraySource({"x": torch.zeros(3, 2), "y": torch.zeros(3)})
    for tier in ("resident", "pinned", "mapped", "streamed"):
        assert place(source, tier, Cache(tmp_path / "none"), limit_bytes=9) is source
    assert not (tmp_path / "none").exists()


def test_a_cache_that_can_not_be_made_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    source = MadeUp()
    placed = place(source, "mapped", Cache(tmp_path / "file"))
    assert isinstance(placed, FillingSource)
    rows = torch.arange(9)
    assert equal(placed.read(rows), source.read(rows)) and not placed.complete
    assert equal(placed.stored(), source.stored())
    (why,) = placed.degraded
    assert f"the cache in {tmp_path / 'file'} can't be used" in why
    placed.release()


GB = 1e9
DECODED = Surroundings(
    rows=100_000, row_bytes=5e5, in_memory=False, device_free_bytes=40 * GB, host_free_bytes=200 * GB, disk_free_bytes=500 * GB,
    epochs=5, needed_rows_s=5000, decode_rows_s=8000, disk_bytes_s=3 * GB, link_bytes_s=25 * GB,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "tier", "why", "rejected"),
    [
        (
            {"in_memory": True, "row_bytes": 100},
            "resident",
            "10 MB of 40 GB free",
            {"pinned": "copies every batch", "mapped": "in memory already"},
        ),
        (
            {"in_memory": True},
            "pinned",
            "50 GB is too much for 40 GB free",
            {"resident": "50 GB is too much", "streamed": "in memory already"},
        ),
        (
            {},
            "pinned",
            "50 GB of 200 GB host memory",
            {"resident": "too much for 40 GB free on the device", "mapped": "writes to disk"},
        ),
        (
            {"device_free_bytes": 140 * GB},
            "pinned",
            "rows stay there when first read",
            {"resident": "takes 12.5 s; the run takes 1 min 40 s"},
        ),
        ({"device_free_bytes": 140 * GB, "epochs": 90}, "resident", "50 GB of 140 GB", {"pinned": "over the link"}),
        ({"device_free_bytes": 140 * GB, "link_bytes_s": 2 * GB}, "resident", "batches are gathered on the device", {}),
        (
            {"device_free_bytes": 140 * GB, "epochs": 90, "on_host": True},
            "pinned",
            "host memory",
            {"resident": "on a CPU, rows kept in host memory"},
        ),
        (
            {"host_free_bytes": 20 * GB, "disk_bytes_s": 5 * GB},
            "mapped",
            "50 GB of 500 GB for the cache",
            {"pinned": "too much for 20 GB free in host memory"},
        ),
        (
            {"host_free_bytes": 20 * GB},
            "streamed",
            "in every epoch",
            {"mapped": "the disk delivers 6k rows/s, the source 8k rows/s"},
        ),
        ({"host_free_bytes": 20 * GB, "disk_free_bytes": 0}, "streamed", "in every epoch", {"mapped": "no room for a cache"}),
        (
            {"host_free_bytes": 20 * GB, "disk_free_bytes": 30 * GB},
            "streamed",
            "in every epoch",
            {"mapped": "50 GB is too much for 30 GB of cache"},
        ),
        ({"epochs": 1}, "streamed", "every row is used once", {"pinned": "used once", "mapped": "used once"}),
        ({"epochs": 1, "cached": True}, "mapped", "in the cache already", {"streamed": "reads every row from the source"}),
        (
            {"cached": True},
            "mapped",
            "all 100000 rows are in the cache",
            {"pinned": "would read every row from the source again"},
        ),
        ({"cached": True, "host_free_bytes": 20 * GB}, "streamed", "in every epoch", {"mapped": "the disk delivers 6k rows/s"}),
        (
            {"decode_rows_s": None, "needed_rows_s": None, "device_free_bytes": 140 * GB},
            "pinned",
            "host",
            {"resident": "before the first step"},
        ),
    ],
)
def test_the_choice_of_a_tier(change: dict[str, object], tier: str, why: str, rejected: dict[str, str]) -> None:
    choice = choose_tier(Surroundings(**{**vars(DECODED), **change}))
    assert choice.tier == tier and why in choice.why
    said = dict(choice.rejected)
    assert tier not in said and "streamed" in {tier, *said} and len(said) == 3
    for name, reason in rejected.items():
        assert reason in said[name]
