"""What is left when a run has trained: its model and the parts of its data."""

from __future__ import annotations

import torch
from torch import nn

from flatout.base.errors import DamagedCheckpoint, StoreError, UsageError, did_you_mean
from flatout.data.data import PARTS, Data
from flatout.data.source import Source
from flatout.data.transforms import describe_all
from flatout.engine.job import Job
from flatout.models.finetune import load_weights
from flatout.models.keras_models import waits_for_a_call
from flatout.store.checkpoints import fits_the_run
from flatout.store.run_folder import RunFolder

_HOW_TO_HAVE = {
    "validation": "set holdout: 0.2 or validation: FILE",
    "test": "set test: FILE, which tables, sql and images take,",
}


def trained_model(folder: RunFolder, job: Job) -> nn.Module:
    """The final weights; of an unfinished run those of its best, else its last checkpoint."""
    if waits_for_a_call(job.model):
        _call_once(job)
    if folder.weights_path.exists():
        load_weights(job.model, folder.weights_path)  # which compares its checksum
        return job.model
    checkpoints = folder.checkpoints()
    best, steps = checkpoints.best(), checkpoints.steps()
    if not steps:
        raise StoreError(f"{folder.name} has no weights yet")
    step = steps[-1] if best is None else best["step"]
    try:
        state = checkpoints.load(step)
    except DamagedCheckpoint as damage:
        raise DamagedCheckpoint(
            f"{damage}; move {checkpoints.path(step)} away to use the weights of another checkpoint"
        ) from damage
    with fits_the_run(checkpoints.path(step)):
        job.model.load_state_dict(state["model"])
        if state["average"] is not None:
            with torch.no_grad():
                for parameter, average in zip(job.model.parameters(), state["average"], strict=True):
                    parameter.copy_(average)
    return job.model


def _call_once(job: Job) -> None:
    """Layers that make their weights when they are called have to be, before weights can be loaded into them."""
    columns = describe_all(job.data.prepare, job.data.train.schema)
    blank = {name: torch.zeros((2, *column.shape), dtype=column.dtype) for name, column in columns.items()}
    was_training = job.model.training
    with torch.no_grad():
        job.objective.inputs.call(job.model.eval(), blank)
    job.model.train(was_training)


def own_part(name: str, data: Data, part: str) -> Source:
    """A part of the data that the run `name` was trained with."""
    if part not in PARTS:
        raise UsageError(f"unknown part {part!r}; {did_you_mean(part, PARTS)}")
    parts: dict[str, Source] = {each: source for each in PARTS if (source := getattr(data, each)) is not None}
    if part not in parts:
        raise UsageError(
            f"{name} has no {part} part, its data has {' and '.join(parts)}: {_HOW_TO_HAVE[part]} under data in the recipe "
            "and train again, or evaluate other data with --data"
        )
    return parts[part]
