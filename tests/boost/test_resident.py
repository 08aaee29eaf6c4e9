"""Data kept in memory: the same batches, and no more of it than is used again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

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


@pytest.fixture(autouse=True)
def in_memory() -> Iterator[None]:
    hooks = Hooks()
    resident.Resident().apply("cpu", hooks)
    yield
    hooks.patches.restore()
    resident._kept.clear()
    resident._made_anew.clear()


def passed(data: Numbers) -> list[torch.Tensor]:
    return list(DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3)))


def test_batches_are_the_same_and_samples_are_read_once() -> None:
    data, plainly = Numbers(), Numbers()
    first, second = passed(data), passed(data)
    reads = data.reads
    passed(data)
    assert data.reads == reads
    sampler = iter(
        DataLoader(range(100), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3)).batch_sampler
    )  # type: ignore[arg-type]
    assert len(first) == 7 and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert sorted(int(row[0]) for batch in first for row in batch) == list(range(100)) and next(sampler)
    assert plainly.reads == 0


def test_a_dataset_that_is_made_anew_for_each_pass_is_not_read_as_a_whole_each_time() -> None:
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


def test_two_datasets_of_one_kind_and_length_are_both_kept() -> None:
    """To train on and to evaluate on, say."""
    one, other = Numbers(), Numbers()
    for _ in range(3):
        passed(one), passed(other)
    assert one.reads < 200 and other.reads < 200


def test_lists_that_are_made_anew_are_not_kept() -> None:
    for _ in range(3):
        list(DataLoader([torch.ones(2)] * 50, batch_size=8))  # type: ignore[arg-type]
    assert not resident._kept
