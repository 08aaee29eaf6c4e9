"""Evaluates models in float64, on one mesh after the other, and says what this process found in which rows; or trains a little.

What is asked: looks, each a name below and a mesh; and runs, each a name, a folder and settings.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import FlatoutError
from flatout.data.feeds.evaluation import EvalFeed
from flatout.engine.assembly import make_step
from flatout.engine.parallel.mesh import parse_mesh
from flatout.engine.parallel.shared_evaluation import SharedEvaluation
from flatout.engine.settings import Settings
from flatout.models.gpt import gpt
from flatout.objectives.joining import JoinedMeter
from flatout.objectives.metrics import SumMeter
from flatout.objectives.objective import Meter, is_shared
from flatout.objectives.regress import Regress
from flatout.recipe.build import build_job
from flatout.world.joining import join

ROWS, LEFT = 83, 30  # to train on, and to evaluate; 30 is no multiple of 4
BATCH = 6
CPU = torch.device("cpu")
rows_seen: list[float] = []


class Block(nn.Module):
    """`most`: rows that rank 1 has memory for when it evaluates."""

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self.linear, self.most = nn.Linear(12, 12), most

    def forward(self, x: Tensor) -> Tensor:
        if self.most and not self.training and os.environ.get("RANK") == "1" and len(x) > self.most:
            raise torch.OutOfMemoryError("no room for so many rows")
        return x + self.linear(x).tanh()


class Blocks(nn.Module):
    def __init__(self, outputs: int, short_at: int | None = None, most: int = 2, pause_s: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(5, 12)
        self.blocks = nn.ModuleList(Block(most if number == short_at else None) for number in range(3))
        self.last = nn.Linear(12, outputs)
        self.pause_s = pause_s
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        if self.pause_s and not self.training:
            print("rows to evaluate:", len(x), flush=True)
            time.sleep(self.pause_s)  # a batch that a signal can come in
        x = self.first(x.double())
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.last(x)
        return found


class MedianMeter:
    """Of all rows: medians of shares don't make one."""

    def __init__(self) -> None:
        self.apart: list[Tensor] = []

    def update(self, output: Tensor, loss_sum: Tensor, weight: float | Tensor, batch: dict[str, Tensor]) -> None:
        rows_seen.extend(batch["x"][:, 0].tolist())
        self.apart.append((output - batch["y"]).abs().flatten())

    def result(self) -> dict[str, float]:
        return {"rmse": 0.0, "median": torch.cat(self.apart).median().item()}


@dataclass(frozen=True)
class Median(Regress):
    def meter(self, device: torch.device) -> Meter:
        return MedianMeter()


class Averaged(nn.Module):
    """Of rows of differing lengths: the mean of what tokens mean, padding left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.meaning, self.head = nn.Embedding(200, 8), nn.Linear(8, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        inside = (x > 0).unsqueeze(2)
        found: Tensor = self.head((self.meaning(x) * inside).sum(1) / inside.sum(1))
        return found


def table(y: Tensor, left: int = LEFT, **options: Any) -> fo.Data:
    """The first column of x numbers the rows."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS + LEFT, 5, generator=draw, dtype=torch.float64)
    x[:, 0] = torch.arange(ROWS + LEFT) / 128  # exact in float32, as data is
    kept = slice(ROWS, ROWS + left)
    return fo.data.arrays(x[:ROWS], y[:ROWS], validation=(x[kept], y[kept]), **options)


def tokens() -> fo.Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 19, (ROWS + LEFT, 12), generator=draw)
    y = (x * 7 + 3) % 19
    y[torch.rand(y.shape, generator=draw) < torch.rand(len(y), 1, generator=draw)] = -100
    return replace(fo.data.arrays(x[:ROWS], y[:ROWS], validation=(x[ROWS:], y[ROWS:])), vocabulary=19)


def sequences() -> fo.Data:
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(1, 200, (int(torch.randint(1, 40, (), generator=draw)),), generator=draw).tolist() for _ in range(70)]
    y = [len(row) > 20 for row in rows]
    return fo.data.sequences(rows[:40], y[:40], validation=(rows[40:], y[40:]), vocabulary=200, tokens=160)


def recipes(name: str) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(1)
    number, pair = torch.arange(ROWS + LEFT), torch.randn(ROWS + LEFT, 2, generator=draw, dtype=torch.float64) * 3 + 100
    classes: dict[str, Any] = {"data": table(number % 3, classes=3), "model": lambda: Blocks(3)}
    one = {"objective": "regress", "data": table(pair[:, :1])}
    made: dict[str, dict[str, Any]] = {
        "classify": classes,
        "ema": {**classes, "ema": 0.5, "budget": "6 steps", "evaluate": "2 steps"},
        "regress": {"objective": "regress", "data": table(pair), "model": lambda: Blocks(2)},
        "binary": {"objective": "binary", "data": table(number % 2), "model": lambda: Blocks(1)},
        "multilabel": {"objective": "multilabel", "data": table((pair > 100).long()), "model": lambda: Blocks(2)},
        "next_token": {"objective": "next_token", "data": tokens(), "model": gpt_64},
        "sequences": {"objective": "classify", "data": sequences(), "model": Averaged},
        "few": {**one, "data": table(pair[:, :1], left=3), "model": lambda: Blocks(1)},
        "own": {**one, "objective": Median(), "model": lambda: Blocks(1)},
        "local": {**classes, "exchange": {"every": 2}},
        "short": {**classes, "model": lambda: Blocks(3, short_at=1)},
        "slow": {**classes, "model": lambda: Blocks(3, pause_s=0.2)},
    }
    little: dict[str, Any] = {"batch": BATCH, "budget": "3 steps", "lr": 1e-3, "evaluate": None}
    return {**little, "optimizer": {"sgd": {"momentum": 0.0}}, **made[name]}


def gpt_64() -> nn.Module:
    torch.manual_seed(1)
    return gpt(19, 12, layers=2, heads=4, width=16).double()


class Looks:
    """Evaluations of models as they are made, of one world on one mesh after the other."""

    def __init__(self) -> None:
        self.world = join(CPU)

    def __call__(self, name: str, mesh: str) -> dict[str, Any]:
        world, splits = self.world, []
        world.lay_out(parse_mesh(mesh, world.size))
        job = build_job(fo.Recipe(**recipes(name)), None)
        assert job.data.validation is not None
        made = make_step(job, job.model, Settings(device="cpu", mesh=mesh), world=world)
        shares = world if is_shared(job.objective.meter(CPU)) else None
        feed = EvalFeed(job.data.validation, job.data.prepare, BATCH, "cpu", any_order=True, world=shares)
        rows_seen.clear()
        found = SharedEvaluation(
            made.step.model, job.objective, feed, made.step.exchange, world, "fp32", CPU,
            should_stop=lambda: False, on_split=lambda before, after, why: splits.append([after, why]),
        ).metrics()  # fmt: skip
        return {"metrics": found, "rows": list(rows_seen), "splits": splits}


def trained(name: str, runs: str, settings: dict[str, Any]) -> dict[str, Any]:
    recipe = fo.Recipe(**recipes(name))
    recipe.settings.update({"device": "cpu", "evaluation_batch": BATCH, **settings})
    return {"metrics": fo.run(recipe, runs=Path(runs), cache=Path(os.environ["PROBED"]), planning="off").result["metrics"]}


def count_rows() -> None:
    """What reaches a meter. Batches that it joins count as they come, and not once more when it looks at them together."""
    for kind, name in ((JoinedMeter, "update"), (JoinedMeter, "look"), (SumMeter, "update")):
        count_rows_of(kind, name)


def count_rows_of(kind: Any, name: str) -> None:
    add, inside = getattr(kind, name), []

    def counted(meter: Any, *given: Any) -> None:
        batch = given[-1]
        if "x" in batch and not inside:  # one of them may call another
            rows_seen.extend(batch["x"].double().flatten(1)[:, 0].tolist())
        inside.append(True)
        add(meter, *given)
        inside.pop()

    setattr(kind, name, counted)


def main() -> int:
    looks, runs = (json.loads(given) for given in sys.argv[1:])
    try:
        for run in runs:
            print(json.dumps(trained(**run)))
    except FlatoutError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if looks:
        count_rows()
        look = Looks()
        for name, mesh in looks:
            print(json.dumps(look(name, mesh)))
        look.world.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
