"""From `fo.run` to the first step a run enters at most 25 files of its own, and a CSV cell at most 16 before there is a batch.

Counted is each file of flatout in which a function is called, as `sys.setprofile` sees it, at any depth, on a second run in the
same process, when everything is imported. The run: one process on a CPU, digits, a small network, no trials of settings.

- A run's own files are those that turn a recipe into a step: recipe/, runs/, engine/ and plan/make.py. The
  libraries that they call (base, measure, machine, data, models, objectives, store, plan) are in the count of all files.
- A CSV cell: from the call that makes a source of a table to the first batch of a feed; files of data/.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from evidence import Bar, Report, options

import flatout as fo
from flatout.data.feeds.feed import feed
from flatout.engine.step import Step

SOURCE = os.path.dirname(fo.__file__) + os.sep
RUN = ("recipe", "runs", "engine")
MAKES_THE_PLAN = os.path.join("plan", "make.py")


def entered(call: Callable[[], object]) -> list[str]:
    """Files, in the order in which they are entered."""
    found: dict[str, None] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(SOURCE):
            found[path.removeprefix(SOURCE)] = None

    sys.setprofile(profile)
    try:
        call()
    except _Arrived:
        pass
    finally:
        sys.setprofile(None)
    return list(found)


class _Arrived(BaseException):
    pass


def to_the_first_step(scratch: Path) -> list[str]:
    def run() -> None:
        fo.run(recipe, runs=scratch / "runs", fresh=True, cache=scratch / "cache", planning="off")

    def arrive(step: Step, *given: Any) -> None:
        sys.setprofile(None)
        raise _Arrived

    recipe = fo.Recipe(data="digits", model="mlp", batch=64, lr=1e-3, budget="2 steps", settings={"device": "cpu"})
    run()
    patched: Any = Step
    first, patched.attempt = Step.attempt, arrive
    try:
        return entered(run)
    finally:
        patched.attempt = first


def to_the_first_batch(scratch: Path) -> list[str]:
    path = scratch / "rows.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "job", "bought"])
        rows.writerows([20 + row % 50, ("clerk", "cook")[row % 2], ("no", "yes")[row % 3 == 0]] for row in range(400))

    def read() -> None:
        data = fo.data.table(path, label="bought")
        feed(data, "resident", batch=32, device=torch.device("cpu"), seed=0).next()

    read()
    return entered(read)


def main() -> int:
    asked = options(__doc__, repeats=1).parse_args()
    report = Report("walk", str(__doc__).partition("\n")[0], torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        run, cell = to_the_first_step(Path(folder)), to_the_first_batch(Path(folder))
    own = [path for path in run if os.sep not in path or path.split(os.sep)[0] in RUN or path == MAKES_THE_PLAN]
    data = [path for path in cell if path.split(os.sep)[0] == "data"]
    report.conditions = {"of the run": own, "all files of the run": run, "of a CSV cell": data}
    report.bars = [
        Bar("files of its own from fo.run to the first step", len(own), 25, at_least=False),
        Bar("files from a CSV cell to the first batch", len(data), 16, at_least=False),
    ]
    print(f"libraries included: {len(run)} files to the first step, {len(cell)} to the first batch", file=sys.stderr)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
