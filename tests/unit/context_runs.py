"""Runs whose sequences are split, for tests: the loop itself on every rank, from the last checkpoint on if there is one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import Stopped
from flatout.base.events import EventLog
from flatout.engine.loop import Loop, train
from flatout.engine.settings import Settings
from flatout.models.gpt import from_start, gpt
from flatout.recipe.build import build_job
from flatout.store.run_folder import RunFolder
from flatout.world.joining import join

ROWS, LENGTH, VOCABULARY = 61, 16, 19


class Rotated(nn.Module):
    """A model that is not built in: one layer, two heads of queries for each of keys, positions as angles."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.locate = F.scaled_dot_product_attention, from_start
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.query, self.pair = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        given = self.tokens(x)
        angles = self.locate(x.shape[1], x.device)[:, None] * given.new_tensor([1.0, 0.1])
        key, value = self.pair(given).chunk(2, -1)
        parts = [part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.query(given), key, value)]
        mixed = self.attend(turn(parts[0], angles), turn(parts[1], angles), parts[2], is_causal=True, enable_gqa=True)
        logits: Tensor = self.head(given + mixed.transpose(1, 2).flatten(2))
        return logits


def turn(pairs: Tensor, angles: Tensor) -> Tensor:
    first, second = pairs.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1)


def data(*, masked: bool) -> fo.Data:
    """What comes next depends on all before it."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=draw)
    y = x.cumsum(1) % VOCABULARY
    if masked:
        y[torch.rand(y.shape, generator=draw) < torch.rand(ROWS, 1, generator=draw)] = -100
    return replace(fo.data.arrays(x, y, holdout=0.1), vocabulary=VOCABULARY)


def drawn(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """With weights large enough for attention to matter from the first step on."""

    def model() -> nn.Module:
        torch.manual_seed(1)
        made = make().double()
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.3)
        return made

    return model


def recipe_of(name: str) -> fo.Recipe:
    def small() -> nn.Module:
        return gpt(VOCABULARY, LENGTH, layers=2, heads=4, width=16, bias=True)

    tokens: dict[str, Any] = {"batch": 7, "evaluate": "6 steps", "lr": 3e-3, "clip": 0.5, "budget": "12 steps"}
    made: dict[str, Any] = {
        "masked": {"data": data(masked=True), "model": drawn(small), "objective": "next_token"},
        "counted": {"data": data(masked=False), "model": drawn(small), "objective": {"next_token": {"ignore": None}}},
        "rotated": {"data": data(masked=True), "model": drawn(Rotated), "objective": "next_token"},
        "table": {"data": "digits", "model": "mlp"},
    }
    return fo.Recipe(**{**tokens, **made[name]})


@dataclass(frozen=True)
class Case:
    name: str
    mesh: str
    folder: str
    stop_at: int | None = None  # in this step the first process gets a SIGTERM
    settings: dict[str, Any] = field(default_factory=dict)


def run_all(cases: list[Case]) -> list[dict[str, Any]]:
    return [run(case) for case in cases]


def run(case: Case) -> dict[str, Any]:
    """What the run came to, on this process; nothing of one that was stopped."""
    settings = Settings(mesh=case.mesh, log_every=1, **case.settings)
    folder, world = RunFolder(Path(case.folder)), join(torch.device("cpu"))
    folder.path.mkdir(parents=True, exist_ok=True)
    job = build_job(recipe_of(case.name), None)
    with EventLog(folder.events_path if world.is_first else None) as events, patch.object(Loop, "rate_in", rate_in(case)):
        try:
            result: dict[str, Any] = train(job, settings, folder, events, world=world)
        except Stopped:
            return {}
    return dict(result["metrics"])


def rate_in(case: Case) -> Callable[[Loop, int], float]:
    """Asked for before each step."""
    rate = Loop.rate_in

    def then_stop(loop: Loop, steps: int) -> float:
        if loop.world.is_first and loop.progress.step == case.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return rate(loop, steps)

    return then_stop
