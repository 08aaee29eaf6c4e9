"""Shared by all tests: where real data is, and runs that stay in a temporary folder."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# before torch is loaded: files run side by side, and with more threads than cores each is many times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """A real data set by its path below $FLATOUT_DATA, or below shared/data beside the checkout; skips where it is absent."""

    def find(name: str) -> Path:
        beside = Path(__file__).parent.parent.parent / "shared" / "data"
        path = Path(os.environ.get("FLATOUT_DATA", beside)) / name
        if not path.exists():
            pytest.skip(f"the data set {name} is not on this machine")
        return path

    return find


@pytest.fixture(scope="session", autouse=True)
def ceilings_measured_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measuring this machine's peak rates takes 3 s and happens in each new cache folder: here, once for all tests."""
    from flatout.machine import probe

    measure, disk = probe.measure_ceilings, tmp_path_factory.mktemp("disk")

    @cache
    def measured(device: Any, quick: bool) -> Any:
        return measure(device, quick, folder=disk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "measure_ceilings", lambda device, quick=False, *, folder=None: measured(device, quick))
        yield


@pytest.fixture(autouse=True)
def each_test_has_onednn() -> Iterator[None]:
    """A test that computes in bf16 on a CPU without bf16 instructions turns it off, and later products round differently."""
    from flatout.machine.onednn import onednn_kept

    with onednn_kept():
        yield


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector of garbage need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start processes come first: they take longest, and the last file is waited for by one worker alone."""
    slow = ("parallel", "boost", "doctor", "faults", "drill", "docs")
    items.sort(key=lambda item: next((n for n, name in enumerate(slow) if f"tests/{name}/" in item.nodeid), len(slow)))
