"""A trained run in use: its model, and rows prepared for it as in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from flatout.base.errors import DamagedCheckpoint, DataError, MissingFile, StoreError, UsageError
from flatout.data.checks import check_labels
from flatout.data.data import Data
from flatout.data.fitted.carried import CarriedColumns
from flatout.data.kept import recall
from flatout.data.source import Source, describe_all
from flatout.engine.job import Job
from flatout.models.finetune import load_weights
from flatout.models.keras_models import waits_for_a_call
from flatout.plan.plan import Plan
from flatout.recipe.build import build_job
from flatout.recipe.schema import Recipe
from flatout.store.checkpoints import fits_the_run
from flatout.store.run_folder import RunFolder

CACHE = Path.home() / ".cache" / "flatout"
"""Where measured ceilings, decoded rows and encoded text are kept unless a caller says otherwise."""


class TrainedRun(Protocol):
    """What the verbs need of a run."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> RunFolder: ...

    @property
    def recipe(self) -> Recipe: ...

    @property
    def plan(self) -> Plan: ...


class ArrowTable(Protocol):
    """A table in memory that Arrow can read: a pyarrow.Table, a DataFrame of pandas or Polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


OtherData = (
    Data | str | Path | Mapping[str, Any] | np.ndarray | Tensor | Sequence[Any] | ArrowTable | Dataset[Any] | DataLoader[Any]
)


def job_of(folder: RunFolder, recipe: Recipe) -> Job:
    """The run's model and how rows are prepared for it. Works without the training data, from the files of the run."""
    try:
        data = folder.parsed("data.json", partial(recall, asked=recipe.data, folder=recipe.folder))
        return build_job(recipe, data=data, trained=True)
    except (MissingFile, UsageError):  # data of Python objects that no file can hold, or a run of an older version
        return build_job(recipe, trained=True)


def trained_model(folder: RunFolder, job: Job, *, best_only: bool = False) -> nn.Module:
    """The final weights; of an unfinished run those of its best checkpoint, else its last one.

    `best_only`: those of its best checkpoint, also if the run finished with other weights.
    """
    if waits_for_a_call(job.model):
        _call_once(job)
    if folder.weights_path.exists() and not best_only:
        load_weights(job.model, folder.weights_path)  # which compares its checksum
        return job.model
    checkpoints = folder.checkpoints()
    best, steps = checkpoints.best(), checkpoints.steps()
    if best_only and (best is None or best["step"] not in steps):
        missing = "no evaluation has marked one" if best is None else f"that of step {best['step']} is gone"
        raise StoreError(f"{folder.name} has no best checkpoint: {missing}. Evaluate its final weights instead, without --best")
    if not steps:
        raise StoreError(f"{folder.name} has no weights yet")
    step = steps[-1] if best is None else best["step"]
    try:
        state = checkpoints.load(step)
    except DamagedCheckpoint as damage:
        raise DamagedCheckpoint(f"{damage}; move {checkpoints.path(step)} away to use another checkpoint") from damage
    with fits_the_run(checkpoints.path(step)):
        job.model.load_state_dict(state["model"])
        if state["average"] is not None:
            with torch.no_grad():
                for parameter, average in zip(job.model.parameters(), state["average"], strict=True):
                    parameter.copy_(average)
    return job.model


def _call_once(job: Job) -> None:
    """Layers that create their weights in their first call need that call before weights can be loaded."""
    columns = describe_all(job.data.prepare, job.data.train.schema)
    blank = {name: torch.zeros((2, *column.shape), dtype=column.dtype) for name, column in columns.items()}
    was_training = job.model.training
    with torch.no_grad():
        job.objective.inputs.call(job.model.eval(), blank)
    job.model.train(was_training)


def other_source(
    job: Job,
    data: OtherData,
    *,
    targets: bool,
    cache: Path | None,
    carried: CarriedColumns | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Source:
    """Rows of data that the run was not trained on. `targets`: y is needed, with the same meaning as in training."""
    from flatout.data.others import check_tokens, other_rows  # here: a run that only trains starts sooner without it

    known, name = job.data, str(data) if isinstance(data, str | Path) else "the data"
    source = other_rows(known.fitted, data, targets=targets, cache=cache, carried=carried, say=say)
    known.fitted.check_columns(source.schema, job.objective.inputs.columns, name)
    if isinstance(data, Data) and known.vocabulary is not None:
        check_tokens(data, known.vocabulary)
    # labels of tables and photos are checked while they are read
    if targets and job.objective.name == "classify" and known.fitted.host.kind in ("arrays", "sequences") and source.in_memory:
        labelled = {column: values for column, values in source.stored().items() if column == "y"}
        try:
            check_labels(labelled, None, known.classes if labelled else None, known.labels or ())
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    return source
