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
    made = [Numbers() for _ in range(3)]
    batches = [passed(data) for data in made]
    assert made[0].reads > 100  # as a whole, and a few to see that it is the same each time
    assert [data.reads for data in made[1:]] == [100, 100]  # as the script would
    assert all(torch.equal(a, b) for other in batches[1:] for a, b in zip(batches[0], other, strict=True))
    assert all(kept.columns is None and kept.dataset is None for kept in resident._kept.values())  # nor kept
