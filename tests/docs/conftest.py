"""Runs of the docs stay in a temporary folder, use one thread, and take the machine for measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from known_machine import keep_ceilings

from flatout.runs import verbs

MINE = """
import torch
from known_machine import keep_ceilings
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, outputs, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), width), nn.Linear(width, outputs))

    def forward(self, x):
        return self.layers(x.float())

def focal(model, batch, gamma=2.0):
    return model(batch["x"]).square().sum(), len(batch["x"])
"""


@pytest.fixture(scope="session")
def ceilings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ceilings")
    keep_ceilings(folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, ceilings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the files that the pages name."""
    x = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3)).astype(np.uint8)
    y = np.arange(64) % 10
    np.savez(tmp_path / "train.npz", x=x.astype(np.float32), y=y)
    np.savez(tmp_path / "test.npz", x=np.zeros((5, 8, 8), np.uint8), y=np.zeros(5, np.int64))
    np.save(tmp_path / "images.npy", x)
    np.save(tmp_path / "labels.npy", y)
    np.save(tmp_path / "weights.npy", np.ones(64, np.float32))
    (tmp_path / "shakespeare.txt").write_text("Now is the winter of our discontent\n" * 200)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.txt").write_text("one\n" * 200)
    np.arange(4000).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    (tmp_path / "mine.py").write_text(MINE)

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FLATOUT_CACHE", str(ceilings))
    for verb in (verbs.run, verbs.explain):
        monkeypatch.setitem(verb.__kwdefaults__, "cache", ceilings)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on cores that are shared, one thread is faster than two
    yield tmp_path
    torch.set_num_threads(threads)
    for name in ("mine", "flatout_recipe"):
        sys.modules.pop(name, None)
