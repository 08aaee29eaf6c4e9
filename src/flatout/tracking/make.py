"""A tracker by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.tracking.asked import Track
from flatout.tracking.files import CsvFile, JsonLines
from flatout.tracking.servers import MlflowRun, WandbRun
from flatout.tracking.tensorboard import TensorBoardFiles
from flatout.tracking.tracker import Tracker

MADE: Mapping[str, Callable[[str], Tracker]] = {
    "tensorboard": TensorBoardFiles,
    "mlflow": MlflowRun,
    "wandb": WandbRun,
    "csv": CsvFile,
    "jsonl": JsonLines,
}


def make(track: Track) -> Tracker:
    return MADE[track.name](track.target)
