"""Trains recipes by name, one after the other; each process of a world runs this."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import FlatoutError, Stopped
from flatout.base.events import Event
from flatout.models.gpt import gpt

ROWS, WINDOW, VOCABULARY = 203, 12, 19


class Seen(nn.Module):
    """A weight for each row: with plain SGD it tells how often the row was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1)
        nn.init.zeros_(self.table.weight)

    def forward(self, x: Tensor) -> Tensor:
        counted: Tensor = self.table(x)
        return counted


def sum_of(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
    return model(batch["x"]).sum(), float(len(batch["x"]))


def masked_tokens(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Only data knows how many count."""
    logits, y = model(batch["x"]), batch["y"]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
    return loss, (y != -100).sum()


def data_of_tokens() -> fo.Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, VOCABULARY, (ROWS, WINDOW), generator=draw)
    y = (x * 7 + 3) % VOCABULARY
    y[torch.rand(y.shape, generator=draw) < torch.rand(ROWS, 1, generator=draw)] = -100
    return replace(fo.data.arrays(x, y, holdout=0.1), vocabulary=VOCABULARY)


def gpt_of(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    return gpt(VOCABULARY, WINDOW, layers=2, heads=4, width=16).to(dtype)


def rmsprop(groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
    """Makes its state in its first step."""
    return torch.optim.RMSprop(groups, lr=lr, momentum=0.9, centered=True)


def recipes(name: str) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    table = fo.data.arrays(torch.randn(ROWS, 8, generator=draw), torch.arange(ROWS) % 3, classes=3, holdout=0.1)
    sgd: dict[str, Any] = {"optimizer": {"sgd": {"momentum": 0.9}}, "lr": 0.05, "clip": 0.5}
    tokens: dict[str, Any] = {"data": data_of_tokens, "objective": masked_tokens, "batch": 14, "evaluate": "20 steps"}
    made: dict[str, Any] = {
        "mlp": {"data": lambda: table, "model": {"mlp": {"hidden": [16, 12]}}, "batch": 14, "evaluate": "20 steps", **sgd},
        "thawed": {
            "data": lambda: table, "model": {"mlp": {"hidden": [16, 12]}}, "batch": 14, "lr": 3e-3, "clip": 0.5,
            "freeze": ["backbone"], "unfreeze": {"backbone": "6 steps"}, "rates": {"backbone": 0.5}, "evaluate": "5 steps",
        },
        "gpt": {**tokens, **sgd, "model": lambda: gpt_of(torch.float32)},
        "gpt64": {**tokens, "model": lambda: gpt_of(torch.float64), "lr": 3e-3, "clip": 1.0},
        "tokens64": {**tokens, "objective": "next_token", "model": lambda: gpt_of(torch.float64), "lr": 3e-3, "clip": 1.0},
        "average64": {
            **tokens, "objective": "next_token", "model": lambda: gpt_of(torch.float64), "lr": 3e-3, "clip": 1.0, "ema": 0.7,
            "evaluate": "5 steps",
        },
        "rmsprop64": {
            **tokens, "objective": "next_token", "model": lambda: gpt_of(torch.float64), "lr": 1e-3, "clip": 1.0,
            "optimizer": rmsprop,
        },
        "seen": {
            "data": lambda: fo.data.arrays(torch.arange(ROWS), torch.zeros(ROWS), holdout=0.0),
            "model": Seen, "objective": sum_of, "batch": 14, "evaluate": None, "optimizer": {"sgd": {"momentum": 0.0}},
            "lr": 14.0, "schedule": "constant", "weight_decay": 0.0,
        },
    }  # fmt: skip
    found = dict(made[name])
    return found | {"data": found["data"]()}


def stopping_at(step: int | None) -> list[Any]:
    """A signal to the first process, which has the events, once this step was read."""

    def stop(event: Event) -> None:
        if event["kind"] == "step" and event["step"] == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return [] if step is None else [stop]


def main() -> int:
    for asked in json.loads(sys.argv[1]):
        recipe = fo.Recipe(**{**recipes(asked["name"]), "budget": "50 steps", **asked.get("with", {})})
        recipe.settings.update({"device": "cpu", "log_every": 7, **asked.get("settings", {})})
        try:
            observers = stopping_at(asked.get("stop_at"))
            done = fo.run(
                recipe, runs=Path(asked["runs"]), cache=Path(os.environ["PROBED"]), planning="off", observers=observers
            )
        except FlatoutError as error:
            if isinstance(error, Stopped) and "stop_at" in asked:
                continue
            print(error, file=sys.stderr)
            return error.exit_code
        print(json.dumps(done.result["metrics"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
