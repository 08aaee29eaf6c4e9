import sys
from pathlib import Path

import pytest
import torch

from flatout.machine.ceilings import Ceilings, measure_ceilings
from flatout.machine.device import pick_device

sys.path.insert(0, str(Path(__file__).parent.parent / "shrinking"))  # arithmetic by hand that serves here too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return pick_device("cuda")


@pytest.fixture(scope="session")
def ceilings(device: torch.device) -> Ceilings:
    return measure_ceilings(device, quick=True)
