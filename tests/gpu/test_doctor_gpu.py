"""The doctor on a GPU: faults that only a device can have, and programs that have none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.doctor.kinds import COMPUTE

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
HERE = Path(__file__).parent


def examined(path: Path, cache: Path) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "flatout", "doctor", "--json", path.name],
        cwd=path.parent, capture_output=True, text=True, timeout=300,
        env=environment(cache),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def environment(cache: Path) -> dict[str, str]:
    import os

    return {**os.environ, "FLATOUT_CACHE": str(cache)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probed")
    subprocess.run(
        [sys.executable, "-m", "flatout", "probe", "--quick"], env=environment(folder), check=True, capture_output=True
    )
    return folder


@pytest.mark.parametrize("path", sorted((HERE / "sick").glob("*.py")), ids=lambda path: path.stem)
def test_the_planted_fault_comes_first(path: Path, cache: Path) -> None:
    found = examined(path, cache)
    assert found["findings"] and path.stem == found["findings"][0]["id"], json.dumps(found, indent=1)
    _check_ledger(found)


@pytest.mark.parametrize("path", sorted((HERE / "healthy").glob("*.py")), ids=lambda path: path.stem)
def test_healthy_programs_are_left_in_peace(path: Path, cache: Path) -> None:
    found = examined(path, cache)
    assert [one for one in found["findings"] if one["share"] > 0.05] == [], json.dumps(found, indent=1)
    _check_ledger(found)


def _check_ledger(found: dict[str, Any]) -> None:
    ledger = {row["row"]: row["ms"] for row in found["ledger"]}
    assert sum(ledger.values()) == pytest.approx(found["step_ms"], rel=0.01)
    assert ledger["unattributed"] < 0.1 * sum(ledger.values())


BUSY = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 256, 3, padding=1), nn.Linear(256, 10)
        self.layers = nn.ModuleList(nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.BatchNorm2d(256)) for _ in range(6))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x.mean((2, 3)))

if __name__ == "__main__":
    rows = TensorDataset(torch.randn(2048, 3, 64, 64), torch.randint(0, 10, (2048,)))
    model = nn.DataParallel(Wide()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0.0
    for epoch in range(6):
        for x, y in DataLoader(rows, batch_size=128, shuffle=True, num_workers=4, pin_memory=True):
            loss = F.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
            total += loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_computing_that_fills_a_step_is_in_the_ledger(tmp_path: Path, cache: Path) -> None:
    """Behind a wrapper, with workers, and with a loss that is read in each step."""
    (tmp_path / "busy.py").write_text(BUSY)
    found = examined(tmp_path / "busy.py", cache)
    computing = sum(row["share"] for row in found["ledger"] if row["row"] in COMPUTE)
    assert computing > 0.6, json.dumps(found["ledger"], indent=1)
