"""`predict`: the outputs of a trained model for other data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.data.fitted.carried import CarriedColumns
from flatout.data.others import own_rows
from flatout.engine.precision import autocast
from flatout.runs.in_use import put_to_use
from flatout.runs.trained import CACHE, OtherData, TrainedRun, job_of, other_source


def predict(
    run: TrainedRun,
    data: OtherData,
    *,
    keep: str | Sequence[str] = (),
    each_class: bool | None = False,
    device: str = "auto",
    cache: Path | str | None = CACHE,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Columns of predictions for every row, in the order of the data; `class`, where classes have names, is an array of text.

    `data` is a file, an array, columns of them, a Dataset or a DataLoader; of a run on a table also a query, its raw columns
    such as {"age": [39, 50], "job": ["clerk", "cook"]} without the label, a pyarrow.Table or a DataFrame; of a run on photos
    also a list of the bytes of files; of a run on tokens also lists of ids, or of texts.

    `keep`: columns of the data to put before the predictions, as NumPy arrays: ["id", "name"], or "new=id" to rename one; of
    photos in files, "file". `each_class`: a column probability_NAME for each class instead of `probabilities`; None: if there
    are probabilities. `say` (print, for example) gets a line for each column of a table with values that training never saw,
    with their number.
    """
    carried = CarriedColumns(keep)
    job = job_of(run.folder, run.recipe)
    source = other_source(job, data, targets=False, cache=None if cache is None else Path(cache), carried=carried, say=say)
    used = put_to_use(run.folder, job, run.plan.settings, device)
    pieces: dict[str, list[Tensor]] = {}
    with used.threads(), torch.no_grad(), autocast(used.precision, used.device):
        for batch in used.feed(job, source, source.stored_rows(run.plan.batch)):
            for name, column in job.objective.predict(used.model, batch).items():
                pieces.setdefault(name, []).append(column.cpu())
    outputs = own_rows(source, {name: torch.cat(columns) for name, columns in pieces.items()}, carried, say)
    if each_class is None:
        each_class = "probabilities" in outputs and outputs["probabilities"].dim() == 2
    return carried.joined(job.data.fitted.name_outputs(outputs, job.objective.name, each_class=each_class))
