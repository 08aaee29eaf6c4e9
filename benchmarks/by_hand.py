"""Workers, cache and ragged rows, written by hand, reach 0.95x of DataLoader, Arrow IPC and pyarrow in every case."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import _by_hand_samples as samples
import numpy as np
import psutil
import pyarrow as pa
import torch
from evidence import Bar, Report, options, take_turns
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

import flatout as fo
from flatout.data.cache.cache import Cache, cache_key
from flatout.data.cache.filling import FillingSource
from flatout.data.cache.mapped import MappedStore
from flatout.data.cache.memory import MemoryStore
from flatout.data.source import ArraySource, Batch, Column, Source
from flatout.data.sources.datasets.dataset import dataset

WORKERS = 2
BATCH = 256
ROWS_S, STARTS_S, MB = "rows/s", "starts/s", "MB"
GRANULE_BYTES = 64 << 10
FLATOUT = ("flatout.data.feeds.loader", "flatout.data.cache.filling", "flatout.data.sources.datasets.dataset")
Rate = Callable[[], float]


def timed(rows: int, work: Callable[[], Any]) -> float:
    """Rows a second."""
    began_s = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began_s)


def use_up(batches: Any) -> None:
    for _ in batches:
        pass


# Workers


def torch_loader(data: Dataset[Any], batch: int, persistent: bool = True, start: str = "forkserver") -> DataLoader[Any]:
    return DataLoader(
        data,
        batch_size=batch,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=persistent,
        prefetch_factor=4,
        multiprocessing_context=start,
    )


def our_loader(data: Dataset[Any], batch: int) -> Any:
    columns = {"x": "numbers", "ids": "ids", "weight": "weight", "seen": "seen", "y": "y"}
    made = dataset(data, workers=WORKERS, columns=columns if isinstance(data, samples.Mixed) else None)
    return fo.loader(made, batch, device="cpu", tier="streamed")


def worker_arms(trial: bool) -> dict[str, tuple[Rate, Rate]]:
    """For each kind of samples: ours, and DataLoader's."""
    share = 8 if trial else 1
    kinds: dict[str, tuple[Dataset[Any], Dataset[Any], int]] = {}
    for name, data, batch in (
        ("8x8 digits", samples.Digits(24_000 // share), BATCH),
        ("3x224x224 photos", samples.Photos(1_200 // share), 32),
        ("token rows", samples.TokenRows(16_000 // share), 64),
        ("dicts of mixed types", samples.Mixed(16_000 // share), BATCH),
        ("Python objects", samples.Visits(16_000 // share), BATCH),
    ):
        kinds[name] = data, data, batch
    noisy = samples.Noisy(8_000 // share)
    kinds["samples that draw random numbers"] = noisy, samples.Seeded(noisy), 64
    arms: dict[str, tuple[Rate, Rate]] = {}
    for name, (ours, theirs, batch) in kinds.items():
        one, other = our_loader(ours, batch), torch_loader(theirs, batch)
        rows = len(ours)  # type: ignore[arg-type]
        arms[name] = (
            partial(timed, rows, partial(use_up, one)),
            partial(timed, rows, partial(use_up, other)),
        )
    return arms


def started(data: Dataset[Any]) -> float:
    """Starts a second of two workers, until each has delivered; the template process is there already."""
    source: Any = dataset(data, workers=WORKERS).train
    began_s = time.perf_counter()
    source.read(torch.arange(2 * BATCH))
    took_s = time.perf_counter() - began_s
    source.close()
    return 1 / took_s


def torch_started(data: Dataset[Any], start: str) -> float:
    began_s = time.perf_counter()
    batches = iter(torch_loader(data, BATCH, persistent=False, start=start))
    next(batches)
    next(batches)
    took_s = time.perf_counter() - began_s
    del batches
    gc.collect()
    return 1 / took_s


def children_mb(before: set[int]) -> float:
    """Memory of the processes that are new, shared pages divided among their users."""
    new = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    return sum(child.memory_full_info().pss for child in new) / 1e6


def memory_of_two(data: samples.Large) -> tuple[float, float]:
    """MB of two workers whose dataset has one large array that was read once: ours, DataLoader's."""
    rows = torch.arange(len(data))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    source: Any = dataset(data, workers=WORKERS).train
    for some in rows.split(4 * BATCH):
        source.read(some)
    ours = children_mb(before)
    source.close()
    batches = torch_loader(data, BATCH)
    use_up(batches)
    theirs = children_mb(before)
    return ours, theirs


def resumed(exact: bool) -> float:
    """Share of the batches that are the same in the second half of an epoch, read by a DataLoader that starts there."""
    data: Any = samples.Noisy(512)
    data = samples.Seeded(data) if exact else data

    def read(numbers: range) -> list[Tensor]:
        torch.manual_seed(1)
        loader = DataLoader(
            Subset(data, list(numbers)), batch_size=64, num_workers=WORKERS, multiprocessing_context="forkserver"
        )
        return [batch[0] for batch in loader]

    whole, rest = read(range(512)), read(range(256, 512))
    return sum(map(torch.equal, whole[4:], rest)) / len(rest)


def we_resume() -> float:
    """The same of fo.loader, whose second half is read by other workers, of another number."""
    loader = our_loader(samples.Noisy(512), 64)
    whole, state = [], dict[str, Any]()
    for number, batch in enumerate(loader):
        whole.append(batch["x"].clone())
        if number == 3:
            state = loader.state_dict()
    again = fo.loader(dataset(samples.Noisy(512), workers=1), 64, device="cpu", tier="streamed")
    again.load_state_dict(state)
    rest = [batch["x"].clone() for batch in again]
    return sum(map(torch.equal, whole[4:], rest)) / len(rest)


# The cache on disk


class Ragged(Source):
    """Rows of tokens of different lengths, in memory."""

    def __init__(self, rows: int, least: int, most: int) -> None:
        draw = np.random.default_rng(0)
        self.lengths = draw.integers(least, most, rows)
        self.ends = np.append(0, np.cumsum(self.lengths))
        self.tokens = torch.from_numpy(draw.integers(0, 2000, int(self.ends[-1])))

    @property
    def schema(self) -> dict[str, Column]:
        mean = float(self.lengths.mean())
        return {"x": Column(torch.int64, (), ragged=mean), "start": Column(torch.int64, ()), "y": Column(torch.int64, ())}

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, rows: Tensor) -> Batch:
        sizes = self.lengths[rows.numpy()]
        parts = [self.tokens[self.ends[row] : self.ends[row + 1]] for row in rows.tolist()]
        return {"x": torch.cat(parts), "start": torch.from_numpy(np.cumsum(sizes) - sizes), "y": rows.clone()}

    def fingerprint(self) -> str:
        return "ragged"


def fixed_source(rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> ArraySource:
    x = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8)
    x[:, ..., ::2] = 0  # so that a codec finds something
    return ArraySource({"x": x.to(dtype), "y": torch.arange(rows)})


def our_cache(folder: Path, source: Source, compression: str) -> Source:
    entry = Cache(folder).build(cache_key(source), source.schema, len(source))
    assert entry is not None
    filled = FillingSource(source, MappedStore(entry, source, compression=compression, wait=True))
    for rows in torch.arange(len(source)).split(BATCH):
        filled.read(rows)
    assert filled.store is not None
    filled.store.flush()
    return filled


def arrow_table(source: Source) -> pa.RecordBatch:
    batch = source.read(torch.arange(len(source)))
    columns = {}
    for name, column in source.schema.items():
        if column.ragged is not None:
            ends = pa.array(np.append(batch["start"].numpy(), len(batch[name])))
            columns[name] = pa.LargeListArray.from_arrays(ends, pa.array(batch[name].numpy()))
        elif name != "start":
            content = pa.py_buffer(batch[name].contiguous().view(torch.uint8).numpy())
            columns[name] = pa.Array.from_buffers(pa.binary(column.row_bytes), len(source), [None, content])
    return pa.record_batch(columns)


def write_arrow(path: Path, table: pa.RecordBatch, rows_at_once: int, compression: str) -> None:
    codec = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with path.open("wb") as file:
        with pa.ipc.new_file(file, table.schema, options=codec) as writer:
            for begin in range(0, len(table), rows_at_once):
                writer.write_batch(table.slice(begin, rows_at_once))
        file.flush()
        os.fsync(file.fileno())


def kind(column: Column) -> np.dtype[Any]:
    return torch.empty(0, dtype=column.dtype).numpy().dtype


def of_bytes(array: pa.Array, column: Column) -> Any:
    """A view of a column of fixed width, one row a row."""
    content = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * column.row_bytes :]
    return content[: len(array) * column.row_bytes].view(kind(column)).reshape(len(array), *column.shape)


class ArrowCache:
    """Rows of an Arrow IPC file, memory-mapped; of a compressed one the last granules are kept, as many as ours keeps."""

    def __init__(self, path: Path, source: Source, rows_at_once: int) -> None:
        self.schema = {name: column for name, column in source.schema.items() if name != "start"}
        self.reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.rows_at_once = rows_at_once
        self.granule = lru_cache(maxsize=(32 << 20) // GRANULE_BYTES)(self.reader.get_batch)
        self.whole = self.reader.get_batch(0) if self.reader.num_record_batches == 1 else None

    def read(self, rows: Tensor) -> Batch:
        return self.picked(self.whole, rows.numpy()) if self.whole is not None else self.from_granules(rows.numpy())

    def picked(self, batch: pa.RecordBatch, rows: Any) -> Batch:
        found: Batch = {}
        for name, column in self.schema.items():
            if column.ragged is None:
                found[name] = torch.from_numpy(np.take(of_bytes(batch.column(name), column), rows, axis=0))
            else:
                lists = batch.column(name).take(pa.array(rows))
                ends = lists.offsets.to_numpy()
                found[name] = torch.from_numpy(lists.flatten().to_numpy())
                found["start"] = torch.from_numpy(ends[:-1] - ends[0])
        return found

    def from_granules(self, rows: Any) -> Batch:
        """Fixed columns alone."""
        granules, places = rows // self.rows_at_once, rows % self.rows_at_once
        found = {
            n: np.empty((len(rows), *c.shape), torch.empty(0, dtype=c.dtype).numpy().dtype) for n, c in self.schema.items()
        }
        order = np.argsort(granules, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(granules[order])) + 1):
            batch = self.granule(int(granules[some[0]]))
            for name, column in self.schema.items():
                found[name][some] = of_bytes(batch.column(name), column)[places[some]]
        return {name: torch.from_numpy(column) for name, column in found.items()}


def shuffled(rows: int) -> Iterator[Tensor]:
    return iter(torch.randperm(rows, generator=torch.Generator().manual_seed(0)).split(BATCH))


def reads(source: Any, rows: int) -> float:
    return timed(rows, lambda: [source.read(some) for some in shuffled(rows)])


def check_same(one: Any, other: Any, rows: int) -> None:
    some = next(shuffled(rows))
    ours, theirs = one.read(some), other.read(some)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours), "another batch"


def cache_arms(folder: Path, trial: bool) -> dict[str, tuple[Rate, Rate]]:
    share = 8 if trial else 1
    arms: dict[str, tuple[Rate, Rate]] = {}
    cases: tuple[tuple[str, Source, str], ...] = (
        ("8x8 digits", fixed_source(60_000 // share, (8, 8), torch.float32), "none"),
        ("3x224x224 photos", fixed_source(600 // share, (3, 224, 224), torch.uint8), "none"),
        ("rows of 20 to 400 tokens", Ragged(16_000 // share, 20, 400), "none"),
        ("3x224x224 photos, lz4", fixed_source(600 // share, (3, 224, 224), torch.uint8), "lz4"),
        ("8x8 digits, zstd", fixed_source(16_000 // share, (8, 8), torch.float32), "zstd"),
    )
    for number, (name, source, compression) in enumerate(cases):
        rows = len(source)
        row_bytes = max(1, source.stored_bytes // rows)
        at_once = rows if compression == "none" else max(1, GRANULE_BYTES // row_bytes)
        path = folder / f"{number}.arrow"
        write_arrow(path, arrow_table(source), at_once, compression)
        ours, theirs = our_cache(folder / str(number), source, compression), ArrowCache(path, source, at_once)
        check_same(ours, theirs, rows)
        arms[name] = (
            partial(reads, ours, rows),
            partial(reads, theirs, rows),
        )
    photos = cases[1][1]
    arms["writing 3x224x224 photos"] = (lambda: our_writing(folder, photos), lambda: arrow_writing(folder, photos))
    return arms


def our_writing(folder: Path, source: Source) -> float:
    place = folder / "written"
    rate = timed(len(source), lambda: our_cache(place, source, "none"))
    shutil.rmtree(place)
    return rate


def arrow_writing(folder: Path, source: Source) -> float:
    """In pieces as they are read, as ours does."""
    path = folder / "written.arrow"

    def write() -> None:
        with path.open("wb") as file:
            writer: Any = None
            for rows in torch.arange(len(source)).split(BATCH):
                piece = arrow_table(ArraySource(source.read(rows)))
                writer = writer or pa.ipc.new_file(file, piece.schema)
                writer.write_batch(piece)
            writer.close()
            file.flush()
            os.fsync(file.fileno())

    rate = timed(len(source), write)
    path.unlink()
    return rate


# Rows in memory


def memory_arms(trial: bool) -> dict[str, tuple[Rate, Rate]]:
    share = 8 if trial else 1
    arms: dict[str, tuple[Rate, Rate]] = {}
    for name, source in (
        ("rows of 20 to 400 tokens", Ragged(16_000 // share, 20, 400)),
        ("rows of 6,000 to 25,000 tokens", Ragged(600 // share, 6_000, 25_000)),
    ):
        ours = FillingSource(source, MemoryStore(source))
        for some in torch.arange(len(source)).split(BATCH):
            ours.read(some)
        theirs = ArrowTable(source)
        rows = len(source)
        check_same(ours, theirs, rows)
        arms[name] = (
            partial(reads, ours, rows),
            partial(reads, theirs, rows),
        )
    return arms


class ArrowTable(ArrowCache):
    def __init__(self, source: Source) -> None:
        self.schema = {name: column for name, column in source.schema.items() if name != "start"}
        self.whole = arrow_table(source)


def arm_names(what: str, case: str, library: str) -> tuple[str, str]:
    return f"{what}, {case}: flatout", f"{what}, {case}: {library}"


def compared(report: Report, what: str, library: str, pairs: Mapping[str, tuple[Rate, Rate]], asked: Any, repeats: int) -> None:
    for case, (ours, theirs) in pairs.items():
        names = arm_names(what, case, library)
        arms = dict(zip(names, (ours, theirs), strict=True))
        take_turns(arms, 1)  # processes and mapped pages are there from here on
        for name, values in take_turns(arms, repeats, asked.within).items():
            report.arm(name, ROWS_S, values)
        report.ratio(f"{what}, {case}: flatout over {library}", *names, at_least=0.95)


def main() -> int:
    parser = options(__doc__, repeats=7)
    parser.add_argument("--only", choices=("workers", "start", "cache", "memory"), help="one group of comparisons")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    repeats = 2 if trial else asked.repeats
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    # Python 3.11's fork server neither imports the main script beforehand nor looks into this folder: else each worker would
    # import what this script imports
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    multiprocessing.set_forkserver_preload(["torch.utils.data", "pyarrow", "evidence", "_by_hand_samples", *FLATOUT])
    report = Report("by_hand", str(__doc__), torch.device("cpu"))
    report.conditions = {"workers": WORKERS, "batch": BATCH, "pyarrow": pa.__version__, "numpy": np.__version__}
    groups = (asked.only,) if asked.only else ("workers", "start", "cache", "memory")
    if "workers" in groups:
        compared(report, "workers", "DataLoader", worker_arms(trial), asked, repeats)
        for name, share in (
            ("a DataLoader", resumed(exact=False)),
            ("a DataLoader that seeds each sample", resumed(exact=True)),
        ):
            report.arm(f"batches that are the same after a resume, {name}", "share", [share])
        report.bars.append(Bar("batches that are the same after a resume, flatout", we_resume(), 1.0))
    if "start" in groups:
        starts(report, trial, asked, repeats)
    if "cache" in groups:
        with tempfile.TemporaryDirectory() as folder:
            compared(report, "cache on disk", "Arrow IPC", cache_arms(Path(folder), trial), asked, repeats)
    if "memory" in groups:
        compared(report, "rows in memory", "Arrow take", memory_arms(trial), asked, repeats)
    return report.finish(asked)


def starts(report: Report, trial: bool, asked: Any, repeats: int) -> None:
    digits, large = samples.Digits(4 * BATCH), samples.Large((32 if trial else 256) << 20)
    for name, data in (("small dataset", digits), ("dataset with a large array", large)):
        names = [f"start of 2 workers, {name}: {arm}" for arm in ("flatout", "forkserver", "fork")]
        arms = {
            names[0]: lambda data=data: started(data),
            names[1]: lambda data=data: torch_started(data, "forkserver"),
            names[2]: lambda data=data: torch_started(data, "fork"),
        }
        take_turns(arms, 1)  # the template process and the fork server are there from here on
        for arm, values in take_turns(arms, repeats, asked.within).items():
            report.arm(arm, STARTS_S, values)
        report.ratio(f"start of 2 workers, {name}: flatout over forkserver", names[0], names[1], at_least=0.95)
    ours, theirs = memory_of_two(large)
    report.arm("memory of 2 workers, dataset with a large array: flatout", MB, [ours])
    report.arm("memory of 2 workers, dataset with a large array: DataLoader", MB, [theirs])
    report.bars.append(Bar("memory of 2 workers: flatout over DataLoader", ours / theirs, 0.75, at_least=False))


if __name__ == "__main__":
    sys.exit(main())
