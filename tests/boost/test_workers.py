"""Workers that a boosted script's loaders get read what the script itself would have read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.workers import WorkersRemedy

factor = 1.0


class Scaled(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.tensor([row * factor, float(self.epoch)])


@pytest.fixture(autouse=True)
def workers() -> Iterator[None]:
    hooks = Hooks()
    WorkersRemedy().apply(2, hooks)
    yield
    hooks.patches.restore()


def test_each_pass_hears_what_the_script_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Scaled()
    loader = DataLoader(data, batch_size=4)
    assert loader.num_workers == 2
    for epoch in range(3):
        data.epoch = epoch
        monkeypatch.setitem(globals(), "factor", epoch + 1.0)  # what a worker of an earlier pass knows nothing of
        read = torch.cat(list(loader))
        assert read.tolist() == [[row * (epoch + 1.0), epoch] for row in range(16)]


@pytest.mark.parametrize("said", [{"persistent_workers": True}, {"multiprocessing_context": "spawn"}])
def test_what_the_script_says_of_its_workers_stands(said: dict[str, Any]) -> None:
    loader: DataLoader[Any] = DataLoader(Scaled(), num_workers=1, **said)
    assert loader.num_workers == 2
    assert loader.persistent_workers == said.get("persistent_workers", False)
    if "multiprocessing_context" in said:
        assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_what_is_changed_in_the_middle_of_a_pass_is_said_not_to_be_heard() -> None:
    data = Scaled()
    loader = DataLoader(data, batch_size=1, sampler=[0] * 80)
    with pytest.raises(RuntimeError, match="Scaled during an epoch"):
        for number, _ in enumerate(loader):
            data.epoch = number // 20
    assert number < 40
