"""The numbers of a run as CSV and as JSON lines: files for other programs."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.tracking.tracker import Numbers, TrackedRun


def _path(target: str, run: TrackedRun, ending: str) -> Path:
    """A file, or a folder for one file a run."""
    given = Path(target) if target else run.folder / "tracking" / f"metrics{ending}"
    path = given if given.suffix else given / f"{run.name}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


class CsvFile:
    """One line a number: new names may come at any time, and lines are only added."""

    def __init__(self, target: str) -> None:
        self._target = target

    def begin(self, run: TrackedRun) -> Mapping[str, Any]:
        self._file = _path(self._target, run, ".csv").open("a", newline="")
        self._lines, self._name = csv.writer(self._file), run.name
        if self._file.tell() == 0:
            self._lines.writerow(("run", "at", "step", "name", "value"))
        return {}

    def log(self, numbers: Sequence[Numbers]) -> None:
        for one in numbers:
            self._lines.writerows((self._name, one.at, one.step, name, value) for name, value in one.values.items())
        self._file.flush()

    def end(self, status: str) -> None:
        self._file.close()


class JsonLines:
    """One object a moment: run, at, step, and each number under its name. A number that is not finite is null."""

    def __init__(self, target: str) -> None:
        self._target = target

    def begin(self, run: TrackedRun) -> Mapping[str, Any]:
        self._file, self._name = _path(self._target, run, ".jsonl").open("a"), run.name
        return {}

    def log(self, numbers: Sequence[Numbers]) -> None:
        for one in numbers:
            values = {name: value if value - value == 0 else None for name, value in one.values.items()}
            self._file.write(json.dumps({"run": self._name, "at": one.at, "step": one.step, **values}) + "\n")
        self._file.flush()

    def end(self, status: str) -> None:
        self._file.close()
