"""Any torch Dataset as data: what comes out is the same whoever reads it; what goes wrong is said and leaves nothing."""

from __future__ import annotations

import ast
import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import sample_datasets as given
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from flatout.base.errors import DataError, UsageError
from flatout.data.feeds.feed import feed_options
from flatout.data.feeds.streamed import IterableFeed
from flatout.data.order.keyed import Order
from flatout.data.source import ArraySource, Batch, Column
from flatout.data.sources.datasets import rowreader
from flatout.data.sources.datasets.dataset import DatasetSource, dataset
from flatout.data.sources.datasets.iterables import IterableSource
from flatout.data.sources.datasets.samples import Form
from flatout.data.workers import nursery, watched
from flatout.data.workers.arena import ArenaLayout
from flatout.data.workers.failures import WorkerTraceback
from flatout.data.workers.parcel import Parcel, unpack
from flatout.data.workers.pool import Errand, Pool
from flatout.data.workers.watched import ProcessWorker, ThreadWorker

ROWS = torch.tensor([3, 99, 0, 41, 41, 7, 12, 98, 56, 55, 54])
VISITS = torch.tensor([0, 0, 1, 0, 2, 0, 0, 5, 0, 0, 0])


def source(of: Any, **settings: Any) -> DatasetSource:
    made = dataset(of, **settings).train
    assert isinstance(made, DatasetSource)
    return made


def equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for item in made:
        item.close()


# What samples become


class Named(NamedTuple):
    image: Any
    label: Any


@pytest.mark.parametrize(
    ("sample", "columns", "schema"),
    [
        ((np.zeros((2, 3)), 1), None, {"x": ("float32", [2, 3]), "y": ("int64", [])}),
        ((torch.zeros(4, dtype=torch.uint8),), None, {"x": ("uint8", [4])}),
        (2.5, None, {"x": ("float32", [])}),
        ([1.0, 2.0, 3.0], None, {"x": ("float32", [3])}),
        ([np.zeros(2), 1.5], None, {"x": ("float32", [2]), "y": ("float32", [])}),
        ((np.float64(1), True), None, {"x": ("float32", []), "y": ("int64", [])}),
        ({"x": 1, "y": np.uint8(3), "w": 0.5}, None, {"x": ("int64", []), "y": ("int64", []), "w": ("float32", [])}),
        ({"image": np.zeros(2), "label": 1}, None, {"x": ("float32", [2]), "y": ("int64", [])}),
        (Named(np.zeros(2), 1), None, {"x": ("float32", [2]), "y": ("int64", [])}),
        ({"a": np.zeros(2), "b": 1, "text": "no"}, {"x": "a", "y": "b"}, {"x": ("float32", [2]), "y": ("int64", [])}),
        ((1, "name", 2), ("x", None, "y"), {"x": ("int64", []), "y": ("int64", [])}),
        ((1, "name", 2), {"y": 2, "x": 0}, {"y": ("int64", []), "x": ("int64", [])}),
    ],
)
def test_kinds_of_samples(sample: Any, columns: Any, schema: dict[str, Any]) -> None:
    made = source([sample] * 4, columns=columns, workers=0)
    written = {name: (str(c.dtype).removeprefix("torch."), list(c.shape)) for name, c in made.schema.items()}
    assert written == schema
    assert {name: list(column.shape) for name, column in made.read(torch.tensor([2, 0])).items()} == {
        name: [2, *shape] for name, (_, shape) in schema.items()
    }


@pytest.mark.parametrize(
    ("mode", "shape"), [("RGB", [3, 2, 5]), ("L", [1, 2, 5]), ("1", [1, 2, 5]), ("P", [3, 2, 5]), ("CMYK", [3, 2, 5])]
)
def test_pictures_are_bytes_channels_first(mode: str, shape: list[int]) -> None:
    from PIL import Image

    picture = Image.new(mode, (5, 2))
    made = source([(picture, 0)], workers=0)
    assert made.schema["x"] == Column(torch.uint8, tuple(shape))
    if mode == "RGB":
        picture.putpixel((4, 1), (1, 2, 3))
        assert made.read(torch.zeros(1, dtype=torch.int64))["x"][0, :, 1, 4].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (("words", 1), "column 'x' is text ('words')"),
        ((1, b"raw"), "column 'y' is text (b'raw')"),
        ({"x": None}, "column 'x' is None"),
        ((1, 2, 3), "a sample has 3 parts, but there are 2 names"),
        (((1, "a"), 2), "column 'x' must hold numbers"),
        ((torch.zeros(2, dtype=torch.complex64), 0), "complex numbers"),
        ((torch.zeros(2, 2).to_sparse(), 0), "to_dense"),
    ],
)
def test_samples_that_are_no_numbers_are_refused(sample: Any, said: str) -> None:
    with pytest.raises(DataError) as raised:
        dataset([sample] * 3, workers=0)
    assert said in str(raised.value)


def test_a_type_that_does_not_fit_is_refused_and_one_that_fits_is_taken() -> None:
    assert source([(1.5, 0), (2, 0)], workers=0).read(torch.arange(2))["x"].tolist() == [1.5, 2.0]
    with pytest.raises(DataError, match="sample 1 of list: x is float32, in sample 0 it was int64"):
        source([(1, 0), (2.5, 0), (1, 0)], workers=0).read(torch.arange(3))


def test_wrong_columns_are_named() -> None:
    with pytest.raises(DataError, match="no 'imag'; did you mean 'image'"):
        dataset([{"image": 1}] * 2, columns={"x": "imag"}, workers=0)


@pytest.mark.parametrize(
    ("train", "settings", "error", "said"),
    [
        (DataLoader(TensorDataset(torch.zeros(3))), {}, UsageError, "give train.dataset"),
        (np.zeros((3, 2)), {}, UsageError, "fo.data.arrays"),
        (3, {}, UsageError, "has neither"),
        ([], {}, DataError, "the dataset is empty"),
        ([1, 2], {"workers": "many"}, UsageError, "workers is 'auto'"),
        ([1, 2], {"timeout": 0}, UsageError, "timeout is the number of seconds"),
        ([1, 2], {"on_bad": "skipp"}, UsageError, "did you mean 'skip'"),
        ([1, 2], {"holdout": 0.5, "validation": [1]}, UsageError, "holdout and validation"),
        ([1, 2], {"validation": [[1, 2, 3, 4]]}, DataError, r"x has shape \[\] in training samples and \[4\] in val"),
        (given.Count(5), {"holdout": 0.5}, UsageError, "keeps its own order"),
    ],
)
def test_arguments_that_can_not_be_meant(train: Any, settings: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        dataset(train, **settings)


# The same batches, whoever reads


WAYS = [{"workers": 0}, {"workers": 1}, {"workers": 2}, {"workers": 2, "processes": False}]


@pytest.mark.parametrize("of", [given.Squares(), given.Noisy(), given.Together(), Subset(given.Noisy(), range(100))])
def test_batches_are_equal_for_every_kind_and_number_of_workers(of: Any, closing: list[Any]) -> None:
    read = []
    for way in WAYS:
        made = source(of, seed=5, **way)
        closing.append(made)
        assert made.processes == (way.get("processes", True) and way["workers"] > 0)
        read.append([made.read_visits(ROWS, VISITS), made.read_visits(ROWS.flip(0)[:5], VISITS.flip(0)[:5])])
    assert all(equal(one, other) for batches in read[1:] for one, other in zip(batches, read[0], strict=True))
    assert read[0][0]["y"].tolist() == [of[number][1] for number in ROWS.tolist()]


def test_random_numbers_differ_by_sample_and_visit_and_come_again(closing: list[Any]) -> None:
    noisy = source(given.Noisy(), workers=2, seed=1)
    closing.append(noisy)
    assert noisy.varies and not noisy.alone and not noisy.degraded
    epochs = [noisy.read_visits(torch.arange(100), torch.full((100,), visit))["x"] for visit in (0, 1, 0)]
    assert torch.equal(epochs[0], epochs[2])
    assert len(torch.cat(epochs[:2]).unique(dim=0)) == 200  # no two samples and no two visits alike
    assert all(len(torch.cat(epochs[:2])[:, column].unique()) > 195 for column in range(3))
    other = source(given.Noisy(), workers=0, seed=2)
    assert not torch.equal(other.read(torch.arange(100))["x"], epochs[0])


def test_samples_that_draw_now_and_then_are_found_out(closing: list[Any]) -> None:
    read = []
    for count in (1, 2):
        made = source(given.Sometimes(), workers=count)
        closing.append(made)
        assert not made.varies
        read.append(made.read_visits(torch.arange(100), torch.arange(100)))
        assert made.varies and "draws random numbers for some samples" in made.degraded[-1]
    made = source(given.Sometimes(), workers=0)
    assert made.alone
    assert equal(*read) and equal(made.read_visits(torch.arange(100), torch.arange(100)), read[0])
    assert (read[0]["x"][:, 0] != torch.arange(100)).sum() == 10


def test_several_threads_may_ask_at_once(closing: list[Any]) -> None:
    made = source(given.Noisy(), workers=2)
    closing.append(made)
    spans = [torch.arange(start, start + 10) for start in range(0, 90, 5)]
    with ThreadPoolExecutor(4) as several:
        at_once = list(several.map(lambda rows: made.read_visits(rows, rows), spans))
    assert all(equal(batch, made.read_visits(rows, rows)) for batch, rows in zip(at_once, spans, strict=True))


def test_the_generators_of_training_are_left_as_they_were() -> None:
    made = source(given.Noisy(), workers=0)
    assert made.alone  # said to whoever would read ahead
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    made.read(torch.arange(20))
    dataset(given.Noisy(), workers=0).train.fingerprint()
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_a_dataset_with_a_generator_of_its_own_is_told_on() -> None:
    class Own(given.Squares):
        def __getitem__(self, number: int) -> Any:
            return np.random.default_rng().random(3), number

    made = source(Own(), workers=0)
    assert made.varies
    assert "Own gives different values each time" in made.degraded[0]
    assert made.fingerprint() == source(Own(), workers=0).fingerprint()


def test_rows_go_straight_into_the_tensors_of_the_caller(closing: list[Any]) -> None:
    made = source(given.Squares(), workers=2)
    closing.append(made)
    batch = {name: torch.full((len(ROWS), *c.shape), -7, dtype=c.dtype) for name, c in made.schema.items()}
    addresses = {name: column.data_ptr() for name, column in batch.items()}
    made.read_into(ROWS, batch)
    assert equal(batch, made.read(ROWS)) and addresses == {name: column.data_ptr() for name, column in batch.items()}
    assert made.read(torch.empty(0, dtype=torch.int64))["x"].shape == (0, 3)


def test_workers_have_one_thread_and_know_their_number_which_can_change(closing: list[Any]) -> None:
    made = source(given.Curious(), workers=2)
    closing.append(made)
    seen = made.read(torch.arange(12))["x"]
    assert len(seen[:, 0].unique()) == 2 and os.getpid() not in seen[:, 0]
    assert seen[:, 1:].unique(dim=0).tolist() == [[1, 2]]
    made.resize(1)
    time.sleep(0.1)
    assert len(made.read(torch.arange(12))["x"][:, 0].unique()) == 1
    made.close()
    made.close()
    assert not any(_lives(pid) for pid in seen[:, 0].tolist())
    assert made.read(torch.arange(4))["y"].tolist() == [0, 1, 2, 3]  # with new ones


def test_samples_that_are_soon_read_are_not_sent_to_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowreader, "_START_S", 0.0)
    assert source(given.Squares()).processes
    monkeypatch.setattr(rowreader, "_START_S", 60.0)
    assert source(given.Noisy()).processes  # whose random numbers are to be kept apart from those of training
    made = source([(float(number), 0) for number in range(50)])
    assert not made.processes and not made.degraded and not made.alone
    assert made.read(torch.tensor([7, 3]))["x"].tolist() == [7.0, 3.0]


def test_holdout_takes_the_same_samples_each_time_and_loses_none() -> None:
    data = dataset(given.Squares(), holdout=0.2, workers=0, seed=4)
    again = dataset(given.Squares(), holdout=0.2, workers=2, seed=4)
    assert data.validation is not None and again.validation is not None
    kept, held = (part.read(torch.arange(len(part)))["x"][:, 0].long() for part in (data.train, data.validation))
    assert len(kept) == 80 and len(held) == 20
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(100))
    assert equal(again.validation.read(torch.arange(20)), data.validation.read(torch.arange(20)))
    assert data.fingerprint() == again.fingerprint() != dataset(given.Squares(), holdout=0.2, workers=0, seed=5).fingerprint()
    again.train.close()  # type: ignore[attr-defined]


def test_validation_is_another_dataset_read_by_the_same_workers(closing: list[Any]) -> None:
    data = dataset(given.Squares(), validation=given.Squares(10), workers=1)
    closing.append(data.train)
    assert data.validation is not None and len(data.validation) == 10
    assert data.validation.read(torch.tensor([9]))["x"].tolist() == [[9.0, 81.0, -9.0]]
    from_iterable = dataset(given.Squares(), validation=_generator(7), columns=("x", "y"), workers=0).validation
    assert from_iterable is not None and len(from_iterable) == 7


def _generator(stop: int) -> Iterator[Any]:
    yield from ((np.full(3, number), number) for number in range(stop))


def test_classes_come_from_the_dataset() -> None:
    class Labelled(given.Squares):
        classes = ("cat", "dog", "owl")

    class Targets(given.Squares):
        targets = (0, 4, 2)

    named = dataset(Subset(Labelled(), range(10)), workers=0)
    assert (named.classes, named.labels) == (3, ("cat", "dog", "owl"))
    assert dataset(Targets(), workers=0).classes == 5
    assert dataset(Targets(), workers=0, classes=9).classes == 9
    assert dataset(given.Squares(), workers=0).classes is None
    balanced = dataset(given.Squares(9), workers=0, draw="balanced")
    assert balanced.sampler(0).epoch_rows == 9


def test_a_collate_makes_rows_of_one_shape(closing: list[Any]) -> None:
    ragged = [(np.arange(1 + number % 4, dtype=np.float32), number) for number in range(20)]
    with pytest.raises(DataError) as raised:
        source(ragged, workers=0).read(torch.arange(20))
    assert "sample 1 of list: x has shape [2], in sample 0 it was [1]" in str(raised.value) and "collate=" in str(raised.value)
    made = source(ragged, collate=given.pad_to_five, workers=1)
    closing.append(made)
    assert made.processes and made.read(torch.tensor([6]))["x"].tolist() == [[0.0, 1.0, 2.0, 0.0, 0.0]]
    with pytest.raises(DataError, match=r"list of one sample and returned x of shape \[2\]"):
        source(ragged, collate=lambda samples: torch.zeros(2), workers=0)


def test_tensors_in_memory_are_taken_as_they_are() -> None:
    x, y = torch.randn(50, 3, dtype=torch.float64), torch.arange(50, dtype=torch.int32)
    data = dataset(TensorDataset(x, y), holdout=0.1, validation=None, seed=2)
    by_rows = dataset(Subset(TensorDataset(x, y), range(50)), holdout=0.1, seed=2, workers=0)
    assert isinstance(data.train, ArraySource) and isinstance(by_rows.train, DatasetSource)
    assert equal(data.train.read(torch.arange(45)), by_rows.train.read(torch.arange(45)))
    assert data.validation is not None and by_rows.validation is not None
    assert equal(data.validation.read(torch.arange(5)), by_rows.validation.read(torch.arange(5)))


# What goes wrong


@pytest.mark.parametrize("way", [{"workers": 0}, {"workers": 2}])
def test_a_sample_that_raises_is_named_with_its_line(way: dict[str, Any], closing: list[Any]) -> None:
    made = source(given.Broken((17,)), **way)
    closing.append(made)
    with pytest.raises(DataError) as raised:
        made.read(torch.arange(100).flip(0))
    said = str(raised.value)
    assert "sample 17 of Broken: ValueError: the lamp is off (sample_datasets.py, line" in said
    assert "in __getitem__: raise ValueError" in said and "on_bad='skip'" in said
    cause = raised.value.__cause__
    assert isinstance(cause, WorkerTraceback) and "Traceback" in str(cause) and "the lamp is off" in str(cause)
    assert made.read(torch.tensor([16, 18]))["y"].tolist() == [1, 0]  # the workers go on


def test_of_several_bad_samples_the_first_asked_for_is_named(closing: list[Any]) -> None:
    made = source(given.Broken((17, 33, 71)), workers=2)
    closing.append(made)
    for first, order in ((71, [1, 71, 33, 17]), (33, [0, 33, 17, 71])):
        with pytest.raises(DataError, match=f"sample {first} of Broken"):
            made.read(torch.tensor(order))


@pytest.mark.parametrize("way", [{"workers": 0}, {"workers": 2}])
def test_skip_takes_the_next_good_sample_and_counts(way: dict[str, Any], closing: list[Any]) -> None:
    made = source(given.Broken((17, 33, 71, 99)), on_bad="skip", **way)
    closing.append(made)
    for _ in range(2):
        assert made.read(torch.tensor([16, 17, 33, 71, 99]))["x"][:, 0].tolist() == [16, 18, 34, 72, 0]
    assert made.bad.count == 4
    assert "4 bad samples were left out" in str(made.bad.summary()) and "sample 17 of Broken" in str(made.bad.summary())
    nothing = given.Broken(tuple(range(16)), 16)
    with pytest.raises(DataError, match=r"column 'x' is text .*; none of the other 15 samples"):
        dataset(nothing, on_bad="skip", workers=0)


@pytest.mark.parametrize("way", [{"workers": 0}, {"workers": 1}])
def test_a_sample_that_never_comes_is_named(way: dict[str, Any], closing: list[Any]) -> None:
    made = source(given.Slow(), timeout=0.3, **way)
    closing.append(made)
    with pytest.raises(DataError) as raised:
        made.read(torch.tensor([4, 5, 6]))
    assert "sample 5 took longer than 0.3 s; it is at sample_datasets.py, line" in str(raised.value)
    assert "time.sleep(1000)" in str(raised.value) and "timeout=" in str(raised.value)
    assert made.read(torch.tensor([4, 6]))["y"].tolist() == [1, 0]


def test_a_hang_in_the_first_sample_is_said_as_well() -> None:
    with pytest.raises(DataError, match=r"sample 5 took longer than 0.2 s"):
        dataset(given.Slow(6), timeout=0.2, workers=0)  # the last is looked at as well


def test_a_killed_worker_is_named_with_what_it_had(closing: list[Any]) -> None:
    made = source(given.Deadly(os.getpid()), workers=1)
    closing.append(made)
    with pytest.raises(DataError) as raised:
        made.read(torch.tensor([22, 23, 24]))
    said = str(raised.value)
    assert "worker 0 (process " in said and "was killed by SIGKILL while reading sample 23" in said
    assert "its job was samples 22, 23" in said and "memory" in said
    assert made.read(torch.tensor([22, 24]))["y"].tolist() == [1, 0]


def test_what_can_not_go_to_a_process_is_read_by_threads_and_said() -> None:
    class Local(given.Squares):
        pass

    made = source(Local(), workers=2)
    assert not made.processes and made.workers == 2
    assert "Local is read by threads" in made.degraded[0] and "can't be pickled" in made.degraded[0]
    assert equal(made.read(ROWS), source(given.Squares(), workers=0).read(ROWS))
    made = source(given.Squares(), workers=1, collate=lambda samples: torch.as_tensor(samples[0][0])[None])
    assert "<lambda>" in made.degraded[0] and " at 0x" not in made.degraded[0]


def test_what_a_notebook_defines_is_read_by_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(given.Curious, "__module__", "__main__")
    monkeypatch.setattr(main, "Curious", given.Curious, raising=False)
    monkeypatch.setattr(main, "__file__", None, raising=False)
    assert "Curious is defined in a notebook or an interactive session" in source(given.Curious(), workers=1).degraded[0]
    (tmp_path / "script.py").write_text("print('runs')")
    monkeypatch.setattr(main, "__file__", str(tmp_path / "script.py"))
    assert "script.py, which has no" in source(given.Curious(), workers=1).degraded[0]


def test_a_dataset_is_packed_before_it_is_looked_at(tmp_path: Path, closing: list[Any]) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(10)))
    of = given.Handle(tmp_path / "bytes")
    made = source(of, workers=1)
    closing.append(made)
    assert of.file is not None and made.processes and not made.degraded
    assert made.read(torch.tensor([8, 2]))["x"].tolist() == [8, 2]
    of.file.close()


def test_arrays_go_beside_the_pickle_and_come_back_as_they_were() -> None:
    there = given.InMemory(1000)
    parcel = Parcel(there)
    descriptor, contents = parcel.sealed()
    assert contents.spans[0][1] < 2000 and sum(size for _, size in contents.spans) > 25_000
    back = unpack(descriptor, contents)
    assert torch.equal(back.x, there.x) and torch.equal(back.half, there.half) and np.array_equal(back.y, there.y)
    back.x[0] = -1  # a copy of its own
    assert unpack(descriptor, contents).x[0, 0] == 0


def test_a_worker_can_be_a_new_interpreter_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "start_worker", partial(nursery.start_worker, forked=False))
    worker = ProcessWorker(Parcel(_Echo()), None, ArenaLayout({}, 0), 5.0)
    worker.start()
    assert worker.pid is not None and worker.call("word", str)[0] == "word"
    os.kill(worker.pid, signal.SIGSEGV)
    with pytest.raises(DataError, match=r"worker 0 \(process \d+\) was killed by SIGSEGV"):
        worker.call("word", str)
    worker.close()


def test_a_forgotten_source_takes_its_workers_along() -> None:
    made = source(given.Curious(), workers=1)
    pid = int(made.read(torch.arange(1))["x"][0, 0])
    assert _lives(pid)
    del made
    _until(lambda: not _lives(pid))


def test_a_pool_that_was_closed_says_so() -> None:
    pool = Pool(lambda number, of: ThreadWorker(lambda job, memory: job, ArenaLayout({}, 0), 1), 1)
    taken: list[Any] = []
    pool.run([Errand(3, lambda reply, memory: taken.append(reply), str)])
    pool.close()
    assert taken == [3]
    with pytest.raises(DataError, match="the workers were closed"):
        pool.run([Errand(3, lambda reply, memory: taken.append(reply), str)])


def test_the_thread_of_a_worker_has_ended_when_it_is_closed() -> None:
    """One that goes on while the interpreter goes down, and lets go of tensors, would take the process with it."""
    before = set(threading.enumerate())
    worker = ThreadWorker(lambda job, memory: job, ArenaLayout({}, 0), 1)
    assert worker.call(3, str)[0] == 3
    assert set(threading.enumerate()) - before
    worker.close()
    assert not set(threading.enumerate()) - before


# Processes that end


SCRIPT = """
import json, os, sys, threading, time
import psutil, torch
from torch.utils.data import Dataset
sys.path.insert(0, {tests!r})
import sample_datasets
from flatout.data.sources.datasets.dataset import dataset

class Mine(sample_datasets.Noisy):  # of the script itself: workers import it
    def __getitem__(self, number):
        if number == 50:
            time.sleep(1000)
        return super().__getitem__(number)

def tree():
    here = psutil.Process()
    return [here, *here.children(recursive=True)]

if __name__ == "__main__":
    made = dataset(Mine(), workers=2, timeout=500, processes=True).train
    rows = torch.tensor([n for n in range(100) if n != 50]).repeat(8)
    held = []
    for epoch in range({epochs}):
        for start in range(0, len(rows), 64):
            part = rows[start : start + 64]
            made.read_visits(part, torch.full_like(part, epoch))
        held.append(sum(process.memory_info().rss for process in tree()))
    threading.Timer(0.3, lambda: print(json.dumps({{
        "rss": held, "pids": [process.pid for process in tree()], "processes": made.processes, "degraded": made.degraded,
    }}), flush=True)).start()
    made.read(torch.arange(100))
"""


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(true: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def _script(tmp_path: Path, epochs: int) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parent), epochs=epochs))
    process = subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    told = process.stdout.readline()
    assert told, process.stderr.read().decode() if process.stderr else ""
    return process, json.loads(told)


def test_memory_stays_flat_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    process, told = _script(tmp_path, epochs=10)
    assert told["processes"] and not told["degraded"]
    assert len(told["pids"]) == 4  # it, the template of its workers, and two of these, one at a sample that never comes
    assert told["rss"][-1] < 1.02 * told["rss"][1], told["rss"]
    os.killpg(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT and complaints.count(b"Traceback") == 1 and b"KeyboardInterrupt" in complaints
    _until(lambda: not any(map(_lives, told["pids"])))
    assert set(os.listdir("/dev/shm")) <= before


def test_workers_end_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    process, told = _script(tmp_path, epochs=1)
    process.kill()
    process.communicate(timeout=20)
    _until(lambda: not any(map(_lives, told["pids"])))
    assert set(os.listdir("/dev/shm")) <= before


# Iterables


def feed(of: Any, batch: int, settings: dict[str, Any] | None = None, **made: Any) -> IterableFeed:
    return IterableFeed(IterableSource(of, Form(), **(settings or {})), feed_options(batch, "cpu", **made))


def firsts(batch: Batch) -> list[float]:
    x = batch["x"]
    return (x[:, 0] if x.dim() > 1 else x).tolist()


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize("noise", [True, False])
def test_a_finite_iterable_starts_again_and_batches_cross_its_end(in_process: bool, noise: bool, closing: list[Any]) -> None:
    stream = feed(given.Count(10, noise), 4, {"in_process": in_process})
    closing.append(stream)
    served = [stream.next() for _ in range(5)]
    assert [firsts(batch) for batch in served[:3]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 1000, 1001]]
    assert stream.position == 20 and not stream.degraded
    drawn = torch.cat([batch["x"][:, 1] for batch in served])
    assert len(drawn.unique()) == (20 if noise else 1)
    again = feed(given.Count(10, noise), 4, {"in_process": not in_process})
    closing.append(again)
    assert all(equal(again.next(), batch) for batch in served)


def test_one_worker_reads_an_iterable_and_it_is_told_so(closing: list[Any]) -> None:
    for in_process in (True, False):
        stream = feed(given.Sharded(), 12, {"in_process": in_process})
        closing.append(stream)
        assert stream.next()["x"].tolist() == [[number, 1] for number in range(12)]


def test_odd_sizes_take_nothing_away_from_the_stream() -> None:
    stream = feed(given.Count(), 4, {"in_process": False, "length": math.inf})
    assert [firsts(stream.next(size)) for size in (4, 1, 9, None)] == [
        [0, 1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12, 13], [14, 15, 16, 17],
    ]  # fmt: skip
    assert stream.position == 18
    stream.close()
    assert firsts(stream.next()) == [18, 19, 20, 21]
    stream.close()


@pytest.mark.parametrize("in_process", [True, False])
def test_a_state_goes_on_from_the_batch_served_not_from_what_was_read_ahead(in_process: bool, closing: list[Any]) -> None:
    stream = feed(given.Stateful(50), 4, {"in_process": in_process})
    closing.append(stream)
    for _ in range(8):
        stream.next()
    stream.next(3)
    state = json.loads(json.dumps(stream.state_dict()))
    assert state["position"] == 35 and (state["pass"], state["place"]) == (0, 35)
    expected = [firsts(stream.next()) for _ in range(6)]
    assert expected[0] == [35, 36, 37, 38] and expected[3][2:] == [49, 0]
    resumed = feed(given.Stateful(50), 4, {"in_process": in_process})
    closing.append(resumed)
    resumed.load_state_dict(state)
    resumed.seek(35)
    first = resumed.next()
    assert [firsts(first), *(firsts(resumed.next()) for _ in range(5))] == expected
    assert state["snapshot"] is not None and not resumed.degraded
    assert first["made"][0] < 35  # it did not make again all that came before


@pytest.mark.parametrize("in_process", [True, False])
def test_without_a_state_it_is_read_again_and_said(in_process: bool, closing: list[Any]) -> None:
    stream = feed(given.Count(10, noise=True), 4, {"in_process": in_process})
    closing.append(stream)
    for _ in range(4):
        stream.next()
    state = stream.state_dict()
    expected = [stream.next() for _ in range(3)]
    for resumed, back in ((feed(given.Count(10, noise=True), 4, {"in_process": False}), state), (stream, None)):
        closing.append(resumed)
        if back is not None:
            resumed.load_state_dict(back)
            assert "6 samples of Count are read again" in resumed.degraded[-1] and "no state_dict" in resumed.degraded[-1]
        else:
            resumed.seek(16)
            assert "16 samples of Count are read again" in resumed.degraded[-1]
        assert resumed.position == 16
        assert all(equal(resumed.next(), batch) for batch in expected)


def test_transforms_get_keys_that_follow_pass_and_place() -> None:
    class Keyed:
        def describe(self, schema: Any) -> Any:
            return schema

        def __call__(self, batch: Batch, keys: Any) -> Batch:
            return {**batch, "key": keys.uniform("key")[:, 0]}

        def written(self) -> Any:
            return "keyed"

    whole, halves = (feed(given.Count(6), size, {"in_process": False}, transforms=(Keyed(),)) for size in (12, 3))
    keys = whole.next()["key"]
    assert torch.equal(keys, torch.cat([halves.next()["key"] for _ in range(4)])) and len(keys.unique()) == 12
    whole.close()
    halves.close()


def test_ends_that_were_not_expected_are_said() -> None:
    with pytest.raises(DataError, match="Count gave no sample"):
        feed(given.Count(0), 4)
    with pytest.raises(DataError, match=r"length=inf .* Count .* ended after 6 samples of pass 0"):
        feed(given.Count(6), 8, {"in_process": False, "length": math.inf}).next()
    short = feed(given.Count(3), 8, {"in_process": False, "length": 5})
    assert firsts(short.next()) == [0, 1, 2, 1000, 1001, 1002, 2000, 2001]
    assert any("Count ends after 3 samples" in line and "batch of 8" in line for line in short.degraded)
    assert any("Count has length=5" in line and "3 samples" in line for line in short.degraded)
    short.close()
    once = feed(_generator(6), 4)
    assert "is read by a thread" in once.degraded[0]
    assert firsts(once.next()) == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"generator is an iterator, .* ended after 6 samples"):
        once.next()
    with pytest.raises(UsageError, match="length is a number of samples"):
        feed(given.Count(3), 8, {"length": 2.5})


def test_bad_samples_of_an_iterable() -> None:
    from flatout.data.files.bad import Bad, OnBad

    with pytest.raises(DataError, match=r"sample 3 of Tripping: KeyError: 'tripped' \(sample_datasets.py, line"):
        feed(given.Tripping(), 4, {"in_process": False}).next()
    bad = Bad(OnBad.SKIP)
    left = feed(given.Tripping(), 4, {"in_process": False, "bad": bad})
    assert firsts(left.next()) == [0, 1, 2, 4] and bad.count == 1
    left.close()

    def generator_that_raises() -> Iterator[Any]:
        yield 1.0
        raise KeyError("tripped")

    with pytest.raises(DataError, match="a generator can't continue"):
        feed(generator_that_raises(), 4, {"bad": Bad(OnBad.SKIP)}).next()


def test_an_iterable_that_hangs_or_dies_is_named() -> None:
    def stops() -> Iterator[Any]:
        yield 1.0
        time.sleep(1000)

    with pytest.raises(DataError, match=r"sample 1 took longer than 0.2 s; it is at test_datasets.py, line"):
        feed(stops(), 2, {"timeout_s": 0.2}).next()


def test_an_iterable_as_data() -> None:
    data = dataset(given.Count(20), length=20, validation=given.Count(6), workers=0)
    assert isinstance(data.train, IterableSource) and len(data.train) == 20 and data.validation is not None
    assert data.validation.read(torch.arange(6))["y"].tolist() == list(range(6))
    assert data.describe()["train_rows"] == 20 and data.fingerprint() == data.fingerprint()
    unknown = IterableSource(given.Count(), Form())
    with pytest.raises(DataError, match=r"Count is an iterable of unknown length.*budget in steps"):
        len(unknown)
    with pytest.raises(DataError, match="can't be read by number"):
        unknown.read(torch.arange(2))


def test_the_order_is_ours(closing: list[Any]) -> None:
    data = dataset(given.Squares(), workers=2)
    closing.append(data.train)
    rows = data.sampler(7).rows(0, 250)
    assert torch.equal(rows, Order(7, (100,)).rows(0, 250))
    assert data.train.read(rows)["x"][:, 0].long().tolist() == rows.tolist()


def test_workers_are_watched_one_at_a_time() -> None:
    worker = ProcessWorker(Parcel(_Echo()), None, ArenaLayout({}, 0), 5.0)
    worker.start()
    pid = worker.pid
    assert pid is not None and worker.call("word", str)[0] == "word"
    os.kill(pid, signal.SIGSEGV)
    with pytest.raises(DataError, match=r"worker 0 \(process \d+\) was killed by SIGSEGV"):
        worker.call("word", str)
    assert worker.call("again", str)[0] == "again" and worker.pid != pid
    worker.close()


class _Echo:
    dataset = None

    def settle(self, terms: Any) -> None:
        pass

    def __call__(self, job: Any, memory: Any) -> Any:
        return job


RECIPE = """\
from __future__ import annotations
import os
import numpy as np
import torch
from torch.utils.data import Dataset
import flatout as fo

ROWS, TABLE = 12, {}
TABLE["scale"] = 2.0
with open("made", "a") as made:
    made.write("x")  # once: a worker has no use for a second recipe

class Base(Dataset):
    def __len__(self):
        return ROWS

class Mine(Base):
    def __init__(self):
        self.pid = os.getpid()
    def __getitem__(self, number):
        return {"x": scaled(number), "here": float(os.getpid() == self.pid)}

def scaled(number):
    return np.float32(number * TABLE["scale"])

data = fo.data.dataset(Mine(), workers=1)
recipe = fo.Recipe(data=data, model=lambda: torch.nn.Linear(1, 1), objective="regress", batch=4, lr=1e-3, budget="1 epoch")
raise_if_run_again = open("once", "x").close()
"""


def test_a_dataset_of_the_recipes_own_file_is_read_by_processes(
    tmp_path: Path, closing: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.recipe.load import read_recipe

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPE)
    made = read_recipe(tmp_path / "mine.py").load_data().train
    closing.append(made)
    assert made.processes and not made.degraded
    batch = made.read(torch.tensor([3, 1]))
    assert batch["x"].tolist() == [6.0, 2.0] and batch["here"].tolist() == [0.0, 0.0]
    assert (tmp_path / "made").read_text() == "x"


def test_of_a_file_only_what_is_needed_is_run() -> None:
    from flatout.data.workers.definitions import needed_code

    source = "import sys, a\nsys.path.append('x')\nfrom b import *\nK = 1\nK += 1\nL = K\nM = f()\nprint(K)\nif a: N = 3\n"
    source += "def f(): return g()\ndef g(): return N\nclass C:\n    def m(self): return f() + K\nc = C()\nrecipe = R(c)\n"
    lines = ast.unparse(needed_code(source, ["C"])).splitlines()
    assert lines[:5] == ["import sys, a", "sys.path.append('x')", "from b import *", "K = 1", "K += 1"]
    text = "\n".join(lines)
    assert "N = 3" in text and "def g" in text and "class C" in text
    assert not [word for word in ("L =", "M =", "print", "c = C", "recipe") if word in text]
