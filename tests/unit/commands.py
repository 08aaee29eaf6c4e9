"""What tests of commands share: how a command answers, a small table to train on, what is in a folder."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RECIPE = """\
data: {arrays: train.npz, holdout: 0.25}
model: {mlp: {hidden: [8]}}
batch: 16
lr: 1e-2
budget: 8 epochs
settings: {device: cpu}
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


def table(rows: int = 128, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Two classes that a line tells apart."""
    x = np.random.default_rng(seed).normal(size=(rows, 5)).astype("float32")
    return {"x": x, "y": (x.sum(1) > 0).astype("int64")}


def signal_at(evaluation: int, number: signal.Signals) -> Callable[[Any], None]:
    """Sends this process a signal in the middle of its run, after so many evaluations."""
    seen = []

    def send(event: Any) -> None:
        if event["kind"] == "evaluation":
            seen.append(event)
            if len(seen) == evaluation:
                os.kill(os.getpid(), number)

    return send


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, by what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
