"""A Parquet file comes as shuffled, standardised batches, first epoch and all, 5 times as fast as by pandas and DataLoader."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import torch
from _data import real_data, spending
from evidence import Report, options, take_turns
from torch.utils.data import DataLoader, TensorDataset

import flatout as fo

LABEL, BATCH = "Cover_Type", 1024
ROWS, COLUMNS = 581_012, 54
WORKERS = (0, 1, 2)
UNIT, CPU_UNIT = "rows/s", "CPU s of all processes"
OURS = "flatout: scan, fit, encode, first epoch"


def other(workers: int) -> str:
    return f"pandas, TensorDataset, DataLoader, {workers} workers"


def write_table(path: Path, rows: int | None) -> str:
    """Covertype where it is, else numbers of its shape. As pandas writes it unless told otherwise."""
    real = real_data("covertype/covtype.csv.xz")
    if real is not None:
        frame = pd.read_csv(real, nrows=rows)
        what = "Covertype"
    else:
        draw = np.random.default_rng(0)
        count = rows or ROWS
        columns = {f"c{number}": draw.integers(0, 4000 if number < 10 else 2, count) for number in range(COLUMNS)}
        frame = pd.DataFrame({**columns, LABEL: draw.integers(1, 8, count)})
        what = "random whole numbers"
    frame.to_parquet(path)
    return f"{what}, {len(frame)} rows of {len(frame.columns) - 1} columns, {path.stat().st_size} bytes of snappy Parquet"


def flatout_arm(path: Path) -> int:
    data = fo.data.table(path, label=LABEL)
    return sum(len(batch["x"]) for batch in fo.loader(data, BATCH, device="cpu"))


def pandas_arm(path: Path, workers: int) -> int:
    """In the form that is fastest for it: one array of float32, standardised at once."""
    frame = pd.read_parquet(path)
    y = torch.from_numpy(frame[LABEL].to_numpy() - frame[LABEL].min())
    x = frame.drop(columns=LABEL).to_numpy(dtype=np.float32)
    std = x.std(0)
    x = (x - x.mean(0)) / np.where(std > 0, std, 1)
    loader = DataLoader(TensorDataset(torch.from_numpy(x), y), batch_size=BATCH, shuffle=True, num_workers=workers)
    return sum(len(inputs) for inputs, _ in loader)


class Clock:
    """Rows a second from a path to the end of the first epoch, and the CPU time that took; all rows must have come."""

    def __init__(self, rows: int) -> None:
        self.cpu_s: dict[str, list[float]] = {}
        self._rows = rows

    def timed(self, name: str, arm: Callable[[], int]) -> Callable[[], float]:
        def measure() -> float:
            with spending() as spent:
                seen = arm()
            if seen != self._rows:
                raise RuntimeError(f"{seen} rows came, the file has {self._rows}")
            self.cpu_s.setdefault(name, []).append(spent.cpu_s)
            return self._rows / spent.seconds

        return measure


def stages(path: Path) -> dict[str, float]:
    """Where flatout's CPU time goes, once, in seconds."""
    with spending() as table:
        data = fo.data.table(path, label=LABEL)
    with spending() as epoch:
        for _ in fo.loader(data, BATCH, device="cpu"):
            pass
    return {"scan, fit, encode": round(table.cpu_s, 3), "first epoch": round(epoch.cpu_s, 3)}


def main() -> int:
    asked = options(__doc__, repeats=9).parse_args()
    rows = 20_000 if asked.smoke else None
    repeats = 2 if asked.quick or asked.smoke else asked.repeats
    report = Report("parquet", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "covertype.parquet"
        table = write_table(path, rows)
        count = len(pd.read_parquet(path, columns=[LABEL]))
        clock = Clock(count)
        arms = {OURS: clock.timed(OURS, partial(flatout_arm, path))}
        for workers in WORKERS:
            arms[other(workers)] = clock.timed(other(workers), partial(pandas_arm, path, workers))
        take_turns(arms, 1)  # libraries are loaded and the file is in the page cache from here on
        clock.cpu_s.clear()
        for name, values in take_turns(arms, repeats, asked.within).items():
            report.arm(name, UNIT, values)
        for name, values in clock.cpu_s.items():
            report.arm(f"{name}: CPU time", CPU_UNIT, values)
        took = stages(path)
    best = max((other(workers) for workers in WORKERS), key=lambda name: float(report.arms[name]["median"]))
    versions = {"pandas": pd.__version__, "pyarrow": pa.__version__, "numpy": np.__version__}
    conditions: dict[str, Any] = {"table": table, "batch": BATCH, "cpu_s_of_flatout": took, "best_of_data_loader": best}
    report.conditions = {**conditions, "file_in_page_cache": True, "versions": versions}
    report.ratio("flatout over pandas and DataLoader with its best number of workers", OURS, best, at_least=5)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
