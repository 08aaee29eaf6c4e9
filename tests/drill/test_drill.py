"""The drill itself: a run killed three times, one of them inside of a checkpoint write, ends with the same bits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreters import run_forked

from flatout.base.errors import StoreError
from flatout.drill.difference import differing_bits
from flatout.store.run_folder import RunFolder
from flatout.store.tensors import encode, write_tensors

RECIPE = {
    "data": {"digits": None, "holdout": 0.9},
    "model": {"mlp": {"hidden": [16], "dropout": 0.1}},
    "batch": 32,
    "lr": 0.003,
    "budget": "900 steps",
    "evaluate": "300 steps",
    "ema": 0.99,
}


def test_three_kills_and_no_bit_differs(tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(json.dumps(RECIPE))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = run_forked(["-m", "flatout", "drill", str(recipe), "--kills", "3", "--seed", "3", "--json"], env=environment)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert report["passed"] and report["differing_bits"] == 0 and report["lost_runs"] == 0
    assert len(report["kills"]) == 3 and report["resumed"] == 3 and report["steps"] == 900
    assert report["compared_tensors"] > 15, "weights, average, optimizer and random state"
    assert report["inside_write"] >= 1
    assert "kill 1 of 3" in ended.stderr and "kill 3 of 3" in ended.stderr


def finished(path: Path, state: dict[str, Any]) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir()
    write_tensors(folder.weights_path, {"w": state["w"]})
    folder.checkpoints().write(3, *encode(state))
    return folder


def test_the_comparison_counts_every_bit(tmp_path: Path) -> None:
    ones = torch.ones(4)
    near = ones.clone()
    near.view(torch.int32)[2] ^= 0b101
    a = finished(tmp_path / "a", {"w": ones, "m": torch.zeros(3)})
    b = finished(tmp_path / "b", {"w": ones.clone(), "m": torch.zeros(3)})
    c = finished(tmp_path / "c", {"w": near, "m": torch.zeros(3)})
    d = finished(tmp_path / "d", {"w": ones, "m": torch.tensor([0.0, -0.0, 0.0])})
    e = finished(tmp_path / "e", {"w": ones, "other": torch.zeros(3)})
    assert differing_bits(a, b) == (0, 3)
    assert differing_bits(a, c) == (4, 3), "two in the weights, the same two in the checkpoint"
    assert differing_bits(a, d) == (1, 3), "a zero with another sign is another number"
    with pytest.raises(StoreError, match=r"'m'.*'other'"):
        differing_bits(a, e)
