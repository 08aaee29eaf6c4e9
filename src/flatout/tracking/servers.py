"""MLflow and Weights & Biases, through their own libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from flatout.tracking.tracker import Numbers, TrackedRun

_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # of one request to MLflow
_LONGEST = 500  # characters of a parameter
EXPERIMENT = "flatout"


class MlflowRun:
    """`target`: the tracking URI, by default MLflow's own. The run is resumed by the id that it got."""

    def __init__(self, target: str) -> None:
        self._target = target

    def begin(self, run: TrackedRun) -> Mapping[str, Any]:
        self._mlflow: Any = import_module("mlflow")
        self._entities: Any = import_module("mlflow.entities")
        self._client = self._mlflow.MlflowClient(tracking_uri=self._target or None)
        if "run_id" in run.kept:
            self._id = str(run.kept["run_id"])
            self._client.update_run(self._id, status="RUNNING")
            return run.kept
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = self._client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
        self._id = self._client.create_run(number, run_name=run.name, tags={"flatout.folder": str(run.folder)}).info.run_id
        known = [self._entities.Param(name, value[:_LONGEST]) for name, value in run.parameters.items()]
        for first in range(0, len(known), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=known[first : first + _MOST_PARAMETERS])
        return {"run_id": self._id}

    def log(self, numbers: Sequence[Numbers]) -> None:
        metrics = [
            self._entities.Metric(name, value, int(one.at * 1000), one.step)
            for one in numbers
            for name, value in one.values.items()
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _MOST_METRICS])

    def end(self, status: str) -> None:
        words = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
        if status in words:
            self._client.set_terminated(self._id, status=words[status])


class WandbRun:
    """`target`: the project. WANDB_MODE=offline writes to the run's folder; `wandb sync` sends it later."""

    def __init__(self, target: str) -> None:
        self._target = target

    def begin(self, run: TrackedRun) -> Mapping[str, Any]:
        wandb: Any = import_module("wandb")
        how = {"id": str(run.kept["id"]), "resume": "allow"} if "id" in run.kept else {}
        self._run = wandb.init(
            project=self._target or EXPERIMENT, name=run.name, dir=str(run.folder), config=dict(run.parameters), **how
        )
        self._run.define_metric("*", step_metric="step")  # steps may repeat after a rollback, and wandb's own step may not
        return {"id": self._run.id}

    def log(self, numbers: Sequence[Numbers]) -> None:
        for one in numbers:
            self._run.log({**one.values, "step": one.step, "at": one.at})

    def end(self, status: str) -> None:
        self._run.finish(exit_code=0 if status in ("finished", "running") else 1)
