"""Shuffled batches of a table in memory come 30 times as fast as from DataLoader with its best number of workers, on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from evidence import Report, options, take_turns
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import flatout as fo

ROWS, COLUMNS, BATCH = 400_000, 39, 1024
WORKERS = (0, 1, 2)
UNIT = "rows/s"

OURS = "flatout"
BY_HAND = "slices of randperm"
SELECTED = "slices of randperm, index_select"


def other(workers: int) -> str:
    return f"DataLoader and TensorDataset, {workers} workers"


def passes(batches: Callable[[], Iterable[Any]], rows: int, epochs: int) -> float:
    """Rows a second over whole epochs, their start included: a worker process is started in each."""
    began_s = time.perf_counter()
    for _ in range(epochs):
        for _ in batches():
            pass
    return rows * epochs / (time.perf_counter() - began_s)


def by_hand(x: Tensor, y: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(x))
    for start in range(0, len(x), BATCH):
        rows = order[start : start + BATCH]
        yield x[rows], y[rows]


def selected(x: Tensor, y: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(x))
    for start in range(0, len(x), BATCH):
        rows = order[start : start + BATCH]
        yield x.index_select(0, rows), y.index_select(0, rows)


def data_loader(x: Tensor, y: Tensor, workers: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def main() -> int:
    asked = options(__doc__, repeats=11).parse_args()
    trial = asked.quick or asked.smoke
    rows, repeats, epochs = (40_000, 2, 2) if trial else (ROWS, asked.repeats, 5)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, COLUMNS, generator=generator)
    y = torch.randint(0, 2, (rows,), generator=generator)
    report = Report("loader", str(__doc__), torch.device("cpu"))
    report.conditions = {"rows": rows, "columns": COLUMNS, "batch": BATCH, "epochs": epochs, "epochs_of_data_loader": 1}
    ours = fo.loader((x, y), BATCH, device="cpu")
    theirs = {workers: data_loader(x, y, workers) for workers in WORKERS}
    arms: dict[str, Callable[[], float]] = {
        OURS: lambda: passes(lambda: ours, rows, epochs),
        BY_HAND: lambda: passes(lambda: by_hand(x, y), rows, epochs),
        SELECTED: lambda: passes(lambda: selected(x, y), rows, epochs),
    }
    for workers, served in theirs.items():
        arms[other(workers)] = lambda served=served: passes(lambda: served, rows, 1)  # type: ignore[misc]
    take_turns(arms, 1)  # threads and worker processes are there from here on
    values = take_turns(arms, repeats, asked.within)
    for name, found in values.items():
        report.arm(name, UNIT, found)
    best = max((other(workers) for workers in WORKERS), key=lambda name: report.arms[name]["median"])
    report.conditions["best_of_data_loader"] = best
    report.ratio("flatout over DataLoader with its best number of workers", OURS, best, at_least=30)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
