"""The time left that a compiled run shows after 5% of its steps, against the time that it then took."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from evidence import Report, options
from torch import nn

import flatout as fo
from flatout.measure.time_left import TimeLeft

BAR, SHARES = 0.20, (0.05, 0.10, 0.25, 0.50, 0.75)
ROWS, STEPS = 8192, {"cpu": 400, "cuda": 60_000}


def network() -> nn.Module:
    torch.manual_seed(0)
    widths = (3, 64, 128, 256)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 10))


def shown_errors(steps: int, batch: int, folder: Path) -> dict[float, float]:
    """By share of the steps: how far the time left was from the truth, when it was first shown after that share."""
    left, shown = TimeLeft(), []

    def look(event: Mapping[str, Any]) -> None:
        left(event)
        if event["kind"] == "step" and (seconds := left.seconds) is not None:
            shown.append((event["step"] / steps, event["t"], seconds))
        ended_at[0] = event["t"]

    ended_at = [0.0]
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS, 3, 32, 32, generator=draw), torch.randint(0, 10, (ROWS,), generator=draw)
    data = fo.data.arrays(x, y, classes=10, holdout=0.1)
    recipe = fo.Recipe(data=data, model=network, batch=batch, lr=1e-3, budget=f"{steps} steps", settings={"compile": "on"})
    fo.run(recipe, runs=folder / "runs", cache=folder / "cache", planning="off", observers=[look])
    firsts = {share: next(one for one in shown if one[0] >= share) for share in SHARES}
    return {share: abs(said / (ended_at[0] - at) - 1) for share, (_, at, said) in firsts.items()}


def main() -> int:
    asked = options(__doc__, repeats=3).parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps, batch = STEPS[device.type] // (4 if asked.quick else 1), 64 if device.type == "cpu" else 256
    report = Report("time_left", str(__doc__), device, {"steps": steps, "batch": batch, "rows": ROWS})
    errors: dict[float, list[float]] = {share: [] for share in SHARES}
    for _ in range(1 if asked.quick else asked.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for share, error in shown_errors(steps, batch, Path(folder)).items():
                errors[share].append(error)
    for share, found in errors.items():
        name = f"error after {share:.0%} of the steps"
        report.arm(name, "share", found)
        report.bar(name, name, BAR, at_least=False)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
