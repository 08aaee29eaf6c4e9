"""`evaluate`: metrics of a trained model on a part of its run's data, or on other data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import DataError, MissingFile, UsageError, did_you_mean
from flatout.data.data import PARTS, Data
from flatout.data.own_fit import with_fit_of
from flatout.data.source import Source
from flatout.engine.evaluation import evaluate as evaluate_model
from flatout.objectives.named.parse import named_metrics_of
from flatout.recipe.build import build_job, first_output
from flatout.runs.in_use import put_to_use
from flatout.runs.trained import CACHE, OtherData, TrainedRun, job_of, other_source

_HOW_TO_HAVE = {
    "validation": "set holdout: 0.2 or validation: FILE",
    "test": "set test: FILE (for tables, sql and images)",
}


def evaluate(
    run: TrainedRun,
    data: OtherData | None = None,
    *,
    part: str | None = None,
    metrics: Any = None,
    best: bool = False,
    device: str = "auto",
    cache: Path | str | None = CACHE,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, float]:
    """Metrics of the trained model on the run's validation part, on its test or train part, or on other data.

    All rows are prepared as in training, and none is augmented. `data` is a file, `fo.data.arrays(x, y)`, columns such as
    {"x": x, "y": y} of arrays or files, (x, y), a Dataset or a DataLoader; of a run on a table also a query, its raw columns,
    a pyarrow.Table or a DataFrame, or (DataFrame, labels).

    `metrics` are names, as in a recipe, instead of those of the run's recipe. `best`: use the weights of the best checkpoint.
    `say` gets a line for each column of other data with values that training never saw.
    """
    kept = None if cache is None else Path(cache)
    if data is None:
        rows = own_data(run, kept)
        job = build_job(run.recipe, kept, data=rows, trained=True)
        source = own_part(run.name, job.data, "validation" if part is None else part)
    elif part is None:
        job = job_of(run.folder, run.recipe)
        source = other_source(job, data, targets=True, cache=kept, say=say)
    else:
        raise UsageError(f"part={part!r} selects from the run's own data, but other data was given: give one of them")
    if metrics is not None:
        job = replace(job, named_metrics=named_metrics_of(metrics, job.objective))
    plan = run.plan
    used = put_to_use(run.folder, job, plan.settings, device, best_only=best)
    tier = plan.settings.tier if part == "train" else "resident"  # the training part may be too large for the device
    feed = used.feed(job, source, plan.batch, tier=tier, any_order=True)
    with used.threads():
        batch = next(iter(feed))
        with torch.no_grad():
            job.objective.check(first_output(job, batch), batch)
        found = evaluate_model(used.model, job.evaluated, feed, precision=used.precision, device=used.device)
    assert found is not None
    return found


def own_data(run: TrainedRun, cache: Path | None) -> Data:
    """The data of the recipe, prepared with the numbers that the run has fitted. On other rows the model would get other
    inputs."""
    data = run.recipe.load_data(cache)
    try:
        kept = run.folder.parsed("data.json", dict)
    except MissingFile:  # a run of an older version
        return data
    data = with_fit_of(data, kept)
    if kept.get("fingerprint") != data.fingerprint():
        raise DataError(
            f"the data of {run.name} has changed since it was trained: its files are different, or another version of "
            "flatout prepares them differently. Restore the files, or evaluate other files with --data (in Python data=), "
            "which are prepared as in training"
        )
    return data


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
