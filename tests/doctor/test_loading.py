"""What is seen of a script's DataLoaders while they are gone through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from flatout.doctor.marks import Marks
from flatout.doctor.observing.loading import LoaderObserver
from flatout.doctor.patches import Patches
from flatout.doctor.seen import ScriptRecord


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, keeps: bool) -> None:
        self.keeps, self.read = keeps, dict[int, torch.Tensor]()

    def __len__(self) -> int:
        return 32

    def __getitem__(self, row: int) -> torch.Tensor:
        if row not in self.read and self.keeps:
            self.read[row] = torch.tensor(row)
        return self.read.get(row, torch.tensor(row))


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[tuple[LoaderObserver, ScriptRecord]]:
    patches, seen = Patches(), ScriptRecord()
    found = LoaderObserver(Marks(), seen, tmp_path)
    found.install(patches)
    yield found, seen
    patches.restore()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_dataset_that_keeps_what_it_read_is_known(
    loading: tuple[LoaderObserver, ScriptRecord], keeps: bool, nested: bool
) -> None:
    observer, seen = loading
    data: Dataset[torch.Tensor] = Subset(Numbers(keeps), range(8)) if nested else Numbers(keeps)
    loader = DataLoader(data, batch_size=4)
    list(loader)
    observer.collect()
    assert seen.loaders[0].fills == keeps


def test_the_first_batch_of_each_pass_is_told_apart(loading: tuple[LoaderObserver, ScriptRecord]) -> None:
    loader = DataLoader(Numbers(keeps=False), batch_size=4)
    for _ in range(3):
        list(loader)
    (known,) = loading[1].loaders
    assert known.length == 8 and len(known.firsts_s) == len(known.starts_s) == len(known.ends_s) == 3
    assert set(known.firsts_s) < set(known.waits_s)
