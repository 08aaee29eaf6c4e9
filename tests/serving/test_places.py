"""Devices by name, and how many processes a server has for connections."""

from __future__ import annotations

import pytest
import torch

from flatout.base.errors import UsageError
from flatout.serving.options import ServeOptions, WantedModel
from flatout.serving.places import devices_named
from flatout.serving.serve import check
from flatout.serving.shares import best_row_s, fronts_needed


@pytest.mark.parametrize(
    ("named", "devices"), [("cpu", ("cpu",)), ("cuda:1", ("cuda:1",)), ("cuda:0, cuda:1", ("cuda:0", "cuda:1"))]
)
def test_devices_by_name(named: str, devices: tuple[str, ...]) -> None:
    assert devices_named(named) == devices


def test_cuda_is_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices_named("cuda") == ("cuda:0", "cuda:1", "cuda:2")


@pytest.mark.parametrize("named", ["tpu", "cpu,cuda:0", "cuda:0,cuda:0", "cuda:x", ""])
def test_other_devices_are_refused(named: str, packaged: object) -> None:
    with pytest.raises(UsageError, match="device"):
        check([WantedModel("people", packaged("classes_table").path)], ServeOptions(device=named))  # type: ignore[operator]


def test_fronts_share_the_cores_by_cost() -> None:
    assert best_row_s([(1, 0.001), (64, 0.0064)]) == 0.0001
    assert fronts_needed(2, 60e-6, 3e-6, 1, on_cpu=True) == 2  # a small table: nearly all work is the fronts'
    assert fronts_needed(2, 60e-6, 600e-6, 1, on_cpu=True) == 1
    assert fronts_needed(16, 60e-6, 60e-6, 1, on_cpu=True) == 8
    assert fronts_needed(16, 3.5e-3, 50e-6, 1, on_cpu=False) == 15  # photos that the fronts decode for a GPU
    assert fronts_needed(16, 150e-6, 50e-6, 1, on_cpu=False) == 4
    assert fronts_needed(16, 150e-6, 50e-6, 4, on_cpu=False) == 15
