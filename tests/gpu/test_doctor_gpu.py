"""The doctor on a GPU: faults that only a device can have, and programs that have none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

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
