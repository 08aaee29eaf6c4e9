"""Data kept in memory: the same batches, and no more of it than is used again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from flatout.boost.hooks import Hooks
from flatout.boost.remedies import resident


class Numbers(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        return torch.full((3,), float(index))


@pytest.fixture
def in_memory() -> Iterator[None]:
    hooks = Hooks()
    resident.Resident().apply("cpu", hooks)
    yield
    hooks.patches.restore()
    resident._kept.clear()
    resident._made_anew.clear()


def passed(data: Numbers, workers: int = 0) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(3)
    return list(DataLoader(data, batch_size=16, shuffle=True, generator=drawn, num_workers=workers))


@pytest.fixture
def plainly() -> list[torch.Tensor]:
    return passed(Numbers())


def test_batches_are_the_same_and_samples_are_read_once(plainly: list[torch.Tensor], in_memory: None) -> None:
    data = Numbers()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(passed(data), plainly, strict=True))
    assert 100 < data.reads < 200  # once, and a few to see that they are the same each time


def test_what_the_script_lets_go_of_is_not_kept(in_memory: None) -> None:
    data = Numbers()
    passed(data)
    (kept,) = resident._kept.values()
    assert kept.columns is not None
    del data
    assert kept.columns is None


def test_a_dataset_that_is_made_anew_for_each_pass_is_not_read_as_a_whole_each_time(in_memory: None) -> None:
    reads, batches = [], []
    for _ in range(3):
        data = Numbers()
        batches.append(passed(data))
        reads.append(data.reads)
        del data
    assert reads[0] > 100  # as a whole, and a few to see that it is the same each time
    assert reads[1:] == [100, 100]  # as the script would
    assert all(torch.equal(a, b) for other in batches[1:] for a, b in zip(batches[0], other, strict=True))
    assert not resident._kept


def test_two_datasets_of_one_kind_and_length_are_both_kept(in_memory: None) -> None:
    """To train on and to evaluate on, say."""
    one, other = Numbers(), Numbers()
    for _ in range(3):
        passed(one), passed(other)
    assert one.reads < 200 and other.reads < 200


def test_lists_that_are_made_anew_are_not_kept(in_memory: None) -> None:
    for _ in range(3):
        list(DataLoader([torch.ones(2)] * 50, batch_size=8))  # type: ignore[arg-type]
    assert not resident._kept


class Here(Numbers):
    """Holds something that no other process may use."""

    def __init__(self) -> None:
        super().__init__()
        self.own = os.getpid()

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.getpid() != self.own:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return super().__getitem__(index)


class FromAFile(Numbers):
    """Its place in the file would be that of all workers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.file: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115  closed with the dataset
            self.file.write(bytes(range(100)))
        self.file.seek(index)
        assert self.file.read(1)[0] == index
        return super().__getitem__(index)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class Telling(Numbers):
    """Each process that reads has its own buffer, and only writes."""

    def __init__(self) -> None:
        super().__init__()
        with tempfile.NamedTemporaryFile() as file:
            self.log = open(file.name, "w")  # noqa: SIM115  closed with the dataset

    def __getitem__(self, index: int) -> torch.Tensor:
        print(index, file=self.log, flush=True)
        return super().__getitem__(index)

    def __del__(self) -> None:
        self.log.close()


@pytest.mark.parametrize("kind", [Numbers, Telling, Here, FromAFile])
def test_what_takes_long_is_read_by_workers_if_they_can(
    kind: type[Numbers], plainly: list[torch.Tensor], in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "_LONG_S", 0.0)
    monkeypatch.setattr(resident, "_AT_ONCE", 8)
    data = kind()
    torch.manual_seed(5)
    batches, drawn = passed(data, workers=1), torch.rand(())
    assert all(torch.equal(a, b) for a, b in zip(batches, plainly, strict=True))
    assert data.reads < 50 if kind in (Numbers, Telling) else data.reads > 100
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(()))  # nothing of the script's was drawn from


def named(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack(samples), "twice": torch.stack([2 * sample[0] for sample in samples])}


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    rows = [sample.repeat(1 + int(sample[0]) % 3) for sample in samples]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def masked(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples) * (torch.rand(len(samples), 3) > 0.15)


def centred(samples: list[torch.Tensor]) -> torch.Tensor:
    rows = torch.stack(samples)
    return rows - rows.mean(0)


def sometimes_mixed(samples: list[torch.Tensor]) -> torch.Tensor:
    rows = torch.stack(samples)
    return rows if torch.rand(()) < 0.5 else (rows + rows.flip(0)) / 2


def test_a_way_of_its_own_to_put_samples_together_is_kept(in_memory: None) -> None:
    data = Numbers()
    loader = DataLoader(data, batch_size=30, collate_fn=named)
    for _ in range(2):
        batches = list(loader)
        assert [list(batch) for batch in batches] == [["x", "twice"]] * 4
        assert torch.equal(torch.cat([batch["twice"] for batch in batches]), 2.0 * torch.arange(100))
    assert data.reads < 200
    assert torch.equal(next(iter(DataLoader(data, batch_size=4)))[:, 0], torch.arange(4.0))  # and put together plainly


@pytest.mark.parametrize("collate", [padded, masked, centred, sometimes_mixed])
def test_batches_that_are_more_than_their_samples_are_made_each_time(collate: Any, in_memory: None) -> None:
    data = Numbers()
    torch.manual_seed(1)
    batches = [batch for _ in range(2) for batch in DataLoader(data, batch_size=30, collate_fn=collate)]
    assert data.reads > 200
    torch.manual_seed(1)
    plain = []
    for _ in range(2):
        torch.empty((), dtype=torch.int64).random_()  # the seed that a loader draws for each pass
        plain += [collate([data[row] for row in range(start, min(start + 30, 100))]) for start in range(0, 100, 30)]
    assert all(torch.equal(a, b) for a, b in zip(batches, plain, strict=True))


def test_samples_that_are_left_out_are_left_out(in_memory: None) -> None:
    """Broken ones, as in many scripts: then a row is not where its index says."""

    def whole(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([sample for sample in samples if sample[0] != 5])

    batches = [batch for _ in range(2) for batch in DataLoader(Numbers(), batch_size=10, collate_fn=whole)]
    assert [len(batch) for batch in batches] == 2 * [9, *[10] * 9]
    assert torch.equal(torch.cat(batches[:10])[:, 0], torch.tensor([*range(5), *range(6, 100)], dtype=torch.float32))


def test_samples_that_never_were_in_one_batch_are_not_put_in_one(in_memory: None) -> None:
    class Wide(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.ones(4 if index == 50 else 3)

    assert [batch.shape[1] for batch in DataLoader(Wide(), batch_size=1)] == [3] * 50 + [4] + [3] * 49


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


def test_a_batch_is_of_the_kind_that_it_was(in_memory: None) -> None:
    class Pairs(Numbers):
        def __getitem__(self, index: int) -> Pair:  # type: ignore[override]
            return Pair(super().__getitem__(index), index)

    assert all(type(batch) is Pair for batch in DataLoader(Pairs(), batch_size=10))


def test_a_method_of_the_dataset_does_not_keep_it(in_memory: None) -> None:
    class Own(Numbers):
        def together(self, samples: list[torch.Tensor]) -> torch.Tensor:
            return torch.stack(samples)

    data = Own()
    list(DataLoader(data, batch_size=10, collate_fn=data.together))
    (kept,) = resident._kept.values()
    assert kept.columns is not None
    del data
    assert kept.columns is None


class Changing(Dataset[torch.Tensor]):
    """The number of its epoch, or what a transform makes of it."""

    def __init__(self, count: int = 100) -> None:
        self.epoch, self.values, self.numbers = 0, torch.arange(float(count)), list(range(count))
        self.labels = np.zeros(count)
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> torch.Tensor:
        value = self.values[index % len(self.values)] + self.epoch + self.numbers[index] + self.labels[index % len(self.labels)]
        return self.transform(value) if self.transform is not None else value


def sets_an_epoch(data: Changing) -> None:
    data.epoch += 1


def sets_a_transform(data: Changing) -> None:
    data.transform = lambda value: value * 2


def writes_to_a_tensor(data: Changing) -> None:
    data.values += 1


def writes_to_a_list(data: Changing) -> None:
    data.numbers[:] = [number + 1 for number in data.numbers]


def corrects_a_label(data: Changing) -> None:
    data.labels[37] += 1


def corrects_a_number(data: Changing) -> None:
    data.numbers[37] += 1


def grows(data: Changing) -> None:
    data.numbers.append(7)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "change",
    [sets_an_epoch, sets_a_transform, writes_to_a_tensor, writes_to_a_list, corrects_a_label, corrects_a_number, grows],
    ids=lambda one: one.__name__,
)
def test_what_a_script_changes_between_two_passes_is_heard(change: Any, nested: bool, in_memory: None) -> None:
    data = Changing()
    loader = DataLoader(Subset(data, range(50)) if nested else data, batch_size=16)
    assert torch.equal(torch.cat(list(loader)), torch.cat(list(loader)))
    assert all(kept.columns is not None for kept in resident._kept.values())
    change(data)
    expected = torch.stack([loader.dataset[row] for row in range(len(loader.dataset))])  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="dataset .* has changed"):
        assert torch.equal(torch.cat(list(loader)), expected)
    assert torch.equal(torch.cat(list(loader)), expected)


def test_a_look_at_each_pass_is_short_and_draws_nothing(in_memory: None) -> None:
    data = Numbers()
    passed(data)
    before, state = data.reads, torch.get_rng_state()
    for _ in range(10):
        next(iter(DataLoader(data, batch_size=4)))
    assert data.reads - before <= 8  # of 40 that were handed out
    drawn = torch.get_rng_state()
    torch.set_rng_state(state)
    for _ in range(10):
        torch.empty((), dtype=torch.int64).random_()  # what a loader draws when a pass begins
    assert torch.equal(drawn, torch.get_rng_state())


def test_one_value_of_a_large_array_is_heard_once_there_was_time_to_look(in_memory: None) -> None:
    data = Changing()
    data.labels = np.zeros(2_000_000)  # too large to be gone through before each pass
    loader = DataLoader(data, batch_size=50)
    assert torch.equal(torch.cat(list(loader)), torch.cat(list(loader)))
    (kept,) = resident._kept.values()
    kept.whole_at_s -= 100.0
    corrects_a_label(data)
    with pytest.warns(UserWarning, match="dataset .* has changed"):
        assert torch.cat(list(loader))[37] == 37 + 37 + 1


def test_a_dataset_that_is_told_its_epoch_is_not_kept(in_memory: None) -> None:
    class Told(Changing):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    data = Told()
    loader = DataLoader(data, batch_size=16)
    for epoch in range(3):
        data.set_epoch(epoch)
        assert torch.cat(list(loader))[0] == epoch
    assert not resident._kept
