"""The verbs over a recipe and its runs: run, explain, evaluate, predict, load. Each is a CLI command too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from flatout.base.errors import DataError, MissingFile, StoreError, UsageError
from flatout.base.events import Event, Observer, read_events
from flatout.base.tree import Doc, to_text
from flatout.base.units import parse_seconds
from flatout.data.checks import check_labels
from flatout.data.data import Data
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.fitted.fitted import Words
from flatout.data.kept import recall
from flatout.data.source import Source
from flatout.engine.evaluation import evaluate as evaluate_model
from flatout.engine.job import Job
from flatout.engine.precision import autocast
from flatout.engine.settings import Settings
from flatout.machine.device import pick_device
from flatout.measure.receipt import Receipt
from flatout.models.dataless import WeightsBudget
from flatout.models.residual import narrow_residual
from flatout.plan.explain import explain as explain_plan
from flatout.plan.layouts.fitting import why_not_here
from flatout.plan.make import checked_plan, label_of
from flatout.plan.plan import Plan
from flatout.recipe.build import build_job, first_output
from flatout.recipe.load import read_recipe, recipe_from
from flatout.recipe.schema import Recipe
from flatout.runs.record import Origin
from flatout.runs.train import RunOptions, joined, run_in
from flatout.runs.trained import own_part, trained_model
from flatout.store.run_folder import RunFolder, find


class ArrowTable(Protocol):
    """A table in memory, in Arrow's words: a pyarrow.Table, a DataFrame of pandas or Polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


OtherData = Data | str | Path | Mapping[str, Any] | np.ndarray | Tensor | Sequence[Any] | ArrowTable
CACHE = Path.home() / ".cache" / "flatout"
PLANNING = "5 min"


class Run:
    """What happened: events, checkpoints, result, environment. A view of its folder."""

    def __init__(self, folder: RunFolder, recipe: Recipe | None = None) -> None:
        self.folder = folder
        self._recipe = recipe

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def result(self) -> dict[str, Any]:
        """status, steps, samples, train_seconds, samples_per_s, metrics, plan, ..."""
        return self.folder.result

    @property
    def plan(self) -> Plan:
        return self.folder.parsed("plan.json", Plan.from_dict)

    @property
    def recipe(self) -> Recipe:
        """As it was; a recipe made of Python objects is known only to the process that made it."""
        if self._recipe is None:
            self._recipe = _stored_recipe(self.folder)
        return self._recipe

    def events(self) -> Iterator[Event]:
        return read_events(self.folder.events_path)

    @property
    def receipt(self) -> Receipt | None:
        """What was tried before it began; None where nothing was asked to be."""
        try:
            return self.folder.parsed("receipt.json", Receipt.from_dict)
        except MissingFile:
            return None

    def explain_doc(self) -> Doc:
        degraded = tuple(event for event in self.events() if event.get("kind") in ("degraded", "damaged"))
        return explain_plan(self.plan, self.result, degraded, self.receipt)

    def explain(self) -> str:
        """The plan with its reasons, predicted and measured."""
        return to_text(self.explain_doc())

    def model(self, *, bare: bool = False) -> nn.Module:
        """The trained model, on the CPU, in eval mode: it takes rows as the data has them and prepares them as in training.

        See `PreparedModel` for what it takes of each kind of data. `bare`: the module that was trained alone, as the recipe
        made it, which takes batches that are prepared: normalized, cropped, with columns of a table made numbers.
        """
        from flatout.engine.prepared_model import PreparedModel  # a run that only trains starts sooner without it

        job = _job_to_use(self)
        model = _as_trained(self, trained_model(self.folder, job), torch.device("cpu")).eval()
        if bare:
            return model
        return PreparedModel(model, job.data.fitted, job.objective, partial(_precision, self)).eval()

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.folder.status}>"


def run(
    recipe: Recipe,
    *,
    runs: Path | str = "runs",
    fresh: bool = False,
    observers: Sequence[Observer] = (),
    cache: Path | str | None = CACHE,
    planning: str = PLANNING,
) -> Run:
    """Plan and train. An unfinished run of the same recipe, code and data is resumed, unless `fresh`.

    Started by torchrun, Slurm, Kubeflow or Ray Train, the processes train together.

    `planning` is the most that trials of settings may take, such as "2 min"; "off": none are made.
    """
    asked = RunOptions(Path(runs), fresh, tuple(observers), _folder(cache), _planning_limit(planning))
    with joined(recipe) as world:
        return Run(run_in(world, recipe, asked), recipe)


def explain(
    recipe: Recipe,
    *,
    cache: Path | str | None = CACHE,
    analyze: bool = False,
    planning: str = PLANNING,
    say: Callable[[str], None] = lambda line: None,
) -> Doc:
    """The plan as it would be, with reasons and predictions, and what trials before earlier runs measured. Trains no step.

    `analyze` tries the settings out, in copies of the model, and puts what was measured beside what was predicted.
    """
    cache = _folder(cache)
    # trials train copies of the model: they need its weights
    job = build_job(recipe, cache, weights_budget=None if analyze else WeightsBudget())
    how: dict[str, Any] = {"analyze": True, "say": say} if analyze else {"recall": True}
    plan, receipt = checked_plan(recipe, job, cache, limit_s=_planning_limit(planning), **how)
    short = why_not_here(job, plan.settings)
    return explain_plan(plan, receipt=receipt, short_of_memory=short)


def explain_layouts(
    recipe: Recipe, *, devices: int, device_kind: str, per_node: int | None = None, cache: Path | str | None = CACHE
) -> Doc:
    """What as many devices of a kind would make of it, laid out in every way that fits: memory, time, communication.

    None of these devices has to be here. `compile=on` in the recipe's settings counts as it would there.
    """
    from flatout.plan.layouts.jobs import explain_job_layouts  # a run has no use for it, and starts sooner without it

    cache = _folder(cache)
    job = build_job(recipe, cache, weights_budget=WeightsBudget())
    asked = Settings(compile=recipe.pins.get("compile", "off"))
    name = label_of(recipe, job)
    return explain_job_layouts(job, devices=devices, device_kind=device_kind, name=name, per_node=per_node, settings=asked)


def load(name: str | Path, *, runs: Path | str = "runs", recipe: Recipe | None = None) -> Run:
    """A run by its name in `runs`, by its folder, or `last`."""
    return Run(find(Path(runs), str(name)), recipe)


def evaluate(
    run: Run,
    data: OtherData | None = None,
    *,
    part: str | None = None,
    device: str = "auto",
    cache: Path | str | None = CACHE,
) -> dict[str, float]:
    """Metrics of the trained model on the run's validation part, on its test or train part, or on other data.

    All rows are prepared as in training, and none is augmented. `data` is a file, `fo.data.arrays(x, y)`, columns such as
    {"x": x, "y": y} of arrays or files; of a run on a table also a query, its raw columns, a pyarrow.Table or a DataFrame.
    """
    if data is None:
        job = build_job(run.recipe, _folder(cache))
        _check_unchanged(run, job.data)
        source = own_part(run.name, job.data, "validation" if part is None else part)
    elif part is None:
        job = _job_to_use(run)
        source = _other_source(job, data, targets=True, cache=_folder(cache))
    else:
        raise UsageError(f"part={part!r} is of the run's own data, and other data was given to evaluate: give one of them")
    place = pick_device(device)
    model = _as_trained(run, trained_model(run.folder, job), place)
    tier = run.plan.settings.tier if part == "train" else "resident"  # what was too large for the device still is
    feed = EvalFeed(source, job.data.prepare, run.plan.batch, place, _tier(source, tier), any_order=True)
    batch = next(iter(feed))
    with torch.no_grad():
        model.eval()
        job.objective.check(first_output(job, batch), batch)
    metrics = evaluate_model(model, job.objective, feed, precision=_precision(run, place), device=place)
    assert metrics is not None
    return metrics


def predict(run: Run, data: OtherData, *, device: str = "auto", cache: Path | str | None = CACHE) -> dict[str, Tensor | Words]:
    """Columns of predictions for every row, in the order of the data; `class`, where classes have names, is an array of text.

    `data` is a file, an array, or columns of them; of a run on a table also a query, its raw columns such as
    {"age": [39, 50], "job": ["clerk", "cook"]} without the label, a pyarrow.Table or a DataFrame; of a run on photos also
    a list of the bytes of files; of a run on tokens also lists of ids, or of texts.
    """
    job = _job_to_use(run)
    source = _other_source(job, data, targets=False, cache=_folder(cache))
    place = pick_device(device)
    model = _as_trained(run, trained_model(run.folder, job), place).eval()
    pieces: dict[str, list[Tensor]] = {}
    with torch.no_grad(), autocast(_precision(run, place), place):
        for batch in EvalFeed(source, job.data.prepare, source.stored_rows(run.plan.batch), place, _tier(source)):
            for name, column in job.objective.predict(model, batch).items():
                pieces.setdefault(name, []).append(column.cpu())
    return job.data.fitted.name_outputs({name: torch.cat(columns) for name, columns in pieces.items()}, job.objective.name)


def _check_unchanged(run: Run, data: Data) -> None:
    """What prepares rows is fitted on them: from others than it was trained on, the model would be judged by other inputs."""
    try:
        kept = run.folder.parsed("data.json", lambda written: written["fingerprint"])
    except MissingFile:  # a run from before it was kept
        return
    if kept != data.fingerprint():
        raise DataError(
            f"the data of {run.name} is not what it was trained on any more: its files were changed, or another version of "
            "flatout prepares them otherwise. Bring them back, or name files to evaluate on with --data (in Python data=), "
            "which are prepared as the run's own were"
        )


def _job_to_use(run: Run) -> Job:
    """The run's model and what prepares rows for it, from what the run kept: its training data may be gone."""
    try:
        recipe = run.recipe
        return build_job(recipe, data=run.folder.parsed("data.json", partial(recall, asked=recipe.data, folder=recipe.folder)))
    except (MissingFile, UsageError):  # a run of objects that no file can hold, or one from before it was kept
        return build_job(run.recipe)


def _planning_limit(written: str) -> float:
    if written == "off":
        return 0.0
    return parse_seconds(written)


def _stored_recipe(folder: RunFolder) -> Recipe:
    origin = folder.parsed("origin.json", Origin.from_dict)
    if origin.source is None:
        name = folder.name
        raise StoreError(f"{name} was made from Python objects: use it from Python, fo.load({name!r}, recipe=...)")
    if origin.source == "recipe.py":
        folder.manifest.read("recipe.py")  # it is run: not unless it is what was written
        return read_recipe(folder.path / "recipe.py", origin.overrides, origin.pins, moved_from=Path(origin.file or ""))
    return folder.parsed("recipe.json", lambda written: recipe_from(written, Path(origin.folder), stored=True))


def _folder(cache: Path | str | None) -> Path | None:
    return None if cache is None else Path(cache)


def _other_source(job: Job, data: OtherData, *, targets: bool, cache: Path | None) -> Source:
    """`targets`: y is needed, and means what it meant in training."""
    from flatout.data.others import check_tokens, other_rows  # a run that only trains starts sooner without it

    known, name = job.data, str(data) if isinstance(data, str | Path) else "the data"
    source = other_rows(known.fitted, data, targets=targets, cache=cache)
    known.fitted.check_columns(source.schema, job.objective.inputs.columns, name)
    if isinstance(data, Data) and known.vocabulary is not None:
        check_tokens(data, known.vocabulary)
    # the labels of tables and photos are checked as they are read
    if targets and job.objective.name == "classify" and known.fitted.host.kind in ("arrays", "sequences") and source.in_memory:
        labelled = {column: values for column, values in source.stored().items() if column == "y"}
        try:
            check_labels(labelled, None, known.classes if labelled else None, known.labels or ())
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    return source


def _tier(source: Source, planned: str = "resident") -> str:
    """Rows that have to be read or decoded come as they are needed: nobody knows how many there are."""
    return "resident" if source.in_memory and planned == "resident" else "streamed"


def _as_trained(run: Run, model: nn.Module, device: torch.device) -> nn.Module:
    """On the device, with the stream between its blocks as it was in training; in float32 that makes no difference."""
    narrow_residual(model, run.plan.settings.residual == "autocast")
    return model.to(device)


def _precision(run: Run, device: torch.device) -> str:
    planned = run.plan.settings
    return planned.precision if torch.device(planned.device).type == device.type else "fp32"
