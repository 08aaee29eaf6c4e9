"""What is left when a run has trained: its model, the parts of its data, and other data read as its own was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from flatout.base.errors import DamagedCheckpoint, DataError, StoreError, UsageError, did_you_mean
from flatout.data.arrays import arrays
from flatout.data.data import PARTS, Data
from flatout.data.source import Source
from flatout.data.specs import parse_data
from flatout.data.transforms import describe_all
from flatout.engine.job import Job
from flatout.models.finetune import load_weights
from flatout.models.keras_models import waits_for_a_call
from flatout.recipe import Recipe
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


def read_like(recipe: Recipe, job: Job, path: str, targets: bool, cache: Path | None = None) -> Source:
    """A file of other data, or a query, read as the run's own was: its alphabet, its layout, its labels."""
    written = dict(recipe.data) if isinstance(recipe.data, Mapping) else {}
    reading = dict(job.data.reading)
    if reading.pop("images", False):
        from flatout.data.photos.images import other_images

        return other_images(path, labels=job.data.labels or job.data.classes, targets=targets, **reading)
    if "text" in written:
        own = [part for part in (written["text"], written.get("validation")) if part is not None]
        paths = [one for part in own for one in ([part] if isinstance(part, str) else part)]
        found = parse_data({**written, "text": paths, "validation": path}, recipe.folder, cache)
        if strange := sorted(set(found.alphabet or "") - set(job.data.alphabet or "")):
            raise DataError(f"{path} has characters that the training text has not: {' '.join(map(repr, strange[:10]))}")
        if (found.vocabulary or 0) > (job.data.vocabulary or 0):
            raise DataError(f"{path} has tokens up to {(found.vocabulary or 0) - 1}, the model knows {job.data.vocabulary}")
    elif "sequences" in written:
        options = {name: value for name, value in written.items() if name != "holdout" and (targets or name != "label")}
        found = parse_data({**options, "validation": str(Path(path).absolute())}, recipe.folder, cache)
    elif targets and "arrays" in written and job.data.labels:
        written.pop("holdout", None)
        found = parse_data({**written, "validation": path}, recipe.folder)
    else:
        plain = arrays(path, layout=written.get("layout"))
        if targets and job.objective.name == "classify" and (plain.classes or 0) > (job.data.classes or 0):
            known = f"0 to {(job.data.classes or 0) - 1}"
            raise DataError(f"{path} has labels up to {(plain.classes or 0) - 1}, the model was trained on {known}")
        return plain.train
    assert found.validation is not None
    return found.validation
