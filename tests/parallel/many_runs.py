"""Runs by the same processes one after the other: some that are refused, and one that goes on from mesh to mesh."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import training
from torch import nn

import flatout as fo
from flatout.base.errors import FlatoutError
from flatout.base.events import Event
from flatout.engine.signals import ask_to_stop
from flatout.runs import sharing
from flatout.store.lock import RunLock

second = os.environ["RANK"] == "1"
runs = Path(json.loads(sys.argv[1]))
said: dict[str, str] = {}


def attempt(name: str, mesh: str = "", stop_at: int | None = None, of: str = "mlp", **changed: Any) -> None:
    def stop(event: Event) -> None:
        if event["kind"] == "step" and event["step"] == stop_at:
            ask_to_stop()

    recipe = fo.Recipe(**{**training.recipes(of), "budget": "18 steps", **changed})
    recipe.settings.update({"device": "cpu", "log_every": 1, "mesh": mesh})
    try:
        done = fo.run(
            recipe, runs=runs / name.partition(",")[0], observers=(stop,), cache=Path(os.environ["PROBED"]), planning="off"
        )
        said[name] = f"{done.result['status']} at step {done.result['steps']}"
    except FlatoutError as error:
        said[name] = f"{type(error).__name__}: {error}"


class Own(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * scale


def rows(shift: float) -> fo.Data:
    return fo.data.arrays(torch.ones(40, 8) + shift, torch.arange(40) % 3, classes=3)


attempt("stages", "pipeline=2", model=lambda: nn.Sequential(nn.Linear(8, 3)))
attempt("split", "tensor=2", model={"mlp": {"hidden": [15]}})
scale = 2.0 if second else 1.0
attempt("code", model=lambda: Own(8, 3))
attempt("data", data=rows(1e-3 if second else 0.0))
version = sharing.__version__
sharing.__version__ = "0.0.1" if second else version
attempt("versions")
sharing.__version__ = version

attempt("moved, begun", "shard=2", stop_at=6)
lock = RunLock(next((runs / "moved").iterdir()))
if not second:
    lock.take()
attempt("moved, busy", "shard=2")
lock.release()
attempt("moved, on another mesh", "tensor=2", stop_at=12)
attempt("moved, and another", "pipeline=2")

padded: dict[str, Any] = {"of": "tokens64", "settings": {"vocabulary_padding": 8}}
attempt("padded, begun", "shard=2", stop_at=1, **padded)
attempt("padded, split otherwise", "tensor=2", **padded)
print(json.dumps(said))
