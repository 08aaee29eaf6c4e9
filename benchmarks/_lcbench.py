"""The LCBench surrogate: what training a small network on one of 34 tabular data sets would reach, at each of 52 epochs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flatout.tuning.space.domains import BELOW_ONE
from flatout.tuning.space.space import Space

EPOCHS = 52
ACCURACY = 1  # the column of the outputs
# in the order of the network's inputs, after the epoch
SPACE: dict[str, Any] = {
    "batch": {"low": 16, "high": 512, "log": True, "whole": True},
    "lr": {"low": 1e-4, "high": 0.1, "log": True},
    "momentum": {"low": 0.1, "high": 0.99, "linear": True},
    "weight_decay": {"low": 1e-5, "high": 0.1, "linear": True},
    "layers": {"low": 1, "high": 5, "linear": True, "whole": True},
    "units": {"low": 64, "high": 1024, "log": True, "whole": True},
    "dropout": {"low": 0.0, "high": 1.0, "linear": True},
}
_NO_TASK = ("#na#", "167083")  # the second is in the encoding, and is none of the 34
KEYS = tuple(SPACE)
Array = npt.NDArray[np.float64]


@dataclass
class Surrogate:
    folder: Path
    numbers: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(self.folder / "model.onnx"), options)
        encoding = json.loads((self.folder / "encoding.json").read_text())["OpenML_task_id"]
        self.numbers = {name: number for name, number in encoding.items() if name not in _NO_TASK}

    def accuracy(self, task: str, rows: Array, epoch: int) -> Array:
        """Validation accuracy in percent. `rows`: one column for each key of the space."""
        inputs = np.empty((len(rows), 1 + rows.shape[1]), dtype=np.float32)
        inputs[:, 0], inputs[:, 1:] = epoch, rows
        tasks = np.full((len(rows), 1), self.numbers[task], dtype=np.int64)
        tasks = np.full((len(rows), 1), self.numbers[task], dtype=np.int32)
        (outputs,) = self._session.run(None, {"x_cat": tasks, "x_cont": inputs})
        return np.asarray(outputs[:, ACCURACY], dtype=np.float64)


def best_known(surrogate: Surrogate, space: Space, task: str) -> float:
    """The best of 20,000 random configurations and of a local search from the best ten."""
    draw = np.random.default_rng(0)
    units = draw.random((20_000, len(KEYS)))
    found = surrogate.accuracy(task, rows_of(space, units), EPOCHS)
    width = 0.1
    for _ in range(12):
        best = np.argsort(found)[-10:]
        units, found = units[best], found[best]
        near = np.clip(np.repeat(units, 50, axis=0) + draw.normal(0, width, (500, len(KEYS))), 0, BELOW_ONE)
        units = np.concatenate([units, near])
        found = np.concatenate([found, surrogate.accuracy(task, rows_of(space, near), EPOCHS)])
        width *= 0.75
    return float(found.max())


def rows_of(space: Space, units: Array) -> Array:
    return np.array([[one.at(unit) for one, unit in zip(space.parameters, row, strict=True)] for row in units])


def rows_at(points: Sequence[Mapping[str, Any]]) -> Array:
    return np.array([[point[key] for key in KEYS] for point in points], dtype=np.float64)
