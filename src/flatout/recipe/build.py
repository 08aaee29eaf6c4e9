"""From a recipe to a job: loads, builds and checks everything, before a run folder exists."""

from __future__ import annotations

import hashlib
import json
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout.base.budget import Budget
from flatout.base.errors import DataError, FlatoutError, ModelError, UsageError, did_you_mean
from flatout.base.shapes import Shapes
from flatout.base.source import lasting_text, source_text
from flatout.base.specs import Spec
from flatout.data.data import Data
from flatout.data.feeds.bucketed import BucketFeed
from flatout.data.feeds.contract import FeedOptions
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.kept import Described
from flatout.data.order.keyed import Keys
from flatout.data.source import Batch, apply
from flatout.engine.frozen import Frozen
from flatout.engine.job import HIGHER_IS_BETTER, BestBy, Job
from flatout.engine.optimizers import parse_schedule
from flatout.engine.parallel.rounds import parse_rounds
from flatout.engine.progress import budget_of
from flatout.engine.setting_values import SettingScope
from flatout.engine.settings import settings_of
from flatout.machine.meters import Meters
from flatout.models.build import build as build_model
from flatout.models.build import code_text, source_hash
from flatout.models.dataless import LOOKS_AT_NUMBERS, WeightsBudget, is_dataless, stand_in
from flatout.models.finetune import freeze, load_weights, rates
from flatout.models.libraries.build import Start
from flatout.models.parts import parameters_in
from flatout.models.repeats import callable_copy
from flatout.objectives.binary import Binary
from flatout.objectives.build import build as build_objective
from flatout.objectives.classify import Classify
from flatout.objectives.named.measured import BASELINE
from flatout.objectives.named.metric import NamedMetric
from flatout.objectives.named.parse import named_metrics_of
from flatout.objectives.next_token import FROM_HIDDEN
from flatout.objectives.objective import Objective
from flatout.objectives.regress import Regress
from flatout.objectives.weighting import weights_of
from flatout.recipe.field_checks import chosen_best
from flatout.recipe.model_data import inputs_for
from flatout.recipe.schema import Recipe

PROVISIONAL_LR = 1e-3  # of a job with lr: auto, until its rate is found; no run trains with it
_SAME_LOSS = 1e-3  # largest relative difference between two ways to compute it, in any format


def build_job(
    recipe: Recipe,
    cache: Path | None = None,
    data: Data | None = None,
    *,
    weights_budget: WeightsBudget | None = None,
    trained: bool = False,
) -> Job:
    """`data`: instead of that of the recipe, such as the description that a run stored, if the rows are not needed. `trained`:
    the model gets the weights of a run, so those that it started from are not loaded.

    `weights_budget`: for a job that is inspected, not run. A model that is too large for it gets tensors without data.
    """
    data = recipe.load_data(cache) if data is None else data
    has_rows = not isinstance(data.train, Described)
    inputs = recipe.inputs if "inputs" in recipe.model_fields_set else inputs_for(data, recipe.model)
    objective = build_objective(recipe.objective, inputs)
    if isinstance(objective, Regress):
        objective = _to_regress(objective, data)
    if recipe.class_weights is not None and (has_rows or recipe.class_weights != "balanced"):
        objective = _weighted(recipe.class_weights, objective, data)
    named_metrics = named_metrics_of(recipe.metrics, objective)
    target = data.target()
    outputs = objective.outputs_for(
        classes=data.classes, target_shape=target.shape if target else (), vocabulary=data.vocabulary
    )
    window = data.shapes_x()[0] if data.tokens_per_row > 1 else None
    shapes = Shapes(data.shapes_x(), outputs, data.vocabulary, window, data.cardinalities or None)
    downloads = weights_budget is not None and recipe.downloads  # a model that is only looked at needs no numbers
    start = Start(objective.name, recipe.folder, weights=not trained and not downloads)
    model = build_model(recipe.model, shapes, recipe.seed, weights_budget, start)
    if not trained and (weights := recipe.init_weights()) is not None:
        load_weights(model, *weights)
    frozen = Frozen(frozenset(freeze(model, recipe.freeze)), _unfreezing(recipe, model)) if recipe.freeze else Frozen()
    best_by = _best_by(recipe, objective, named_metrics)
    rows = data.epoch_rows
    if rows is not None and recipe.batch > rows and not data.train.shapes_vary:
        raise DataError(f"batch is {recipe.batch}, more than the {rows} training samples: set batch to {rows} or less")
    return Job(
        model=model,
        data=data,
        objective=objective,
        batch=recipe.batch,
        lr=PROVISIONAL_LR if recipe.searches_rate else recipe.lr,
        budget=Budget.parse(recipe.budget),
        optimizer=recipe.optimizer if callable(recipe.optimizer) else Spec.parse(recipe.optimizer),
        weight_decay=recipe.weight_decay,
        schedule=parse_schedule(recipe.schedule),
        rates=rates(model, recipe.rates) if recipe.rates else {},
        frozen=frozen,
        clip=recipe.clip,
        ema=recipe.ema,
        tensor_plan=recipe.tensor_plan,
        exchange=None if recipe.exchange is None else parse_rounds(recipe.exchange),
        evaluate_every=Budget.parse(recipe.evaluate) if recipe.evaluate else None,
        early_stop=recipe.early_stopping(objective.metric if best_by is None else best_by.metric),
        best_by=best_by,
        price_per_hour=recipe.price,
        seed=recipe.seed,
        named_metrics=named_metrics,
        turns={knob.name: knob.turn for knob in recipe.own_knobs},
    )


def _unfreezing(recipe: Recipe, model: nn.Module) -> dict[str, tuple[Budget, ...]]:
    """By parameter, when it starts to train; if several parts name it, at the earliest of their times."""
    held, until = set(parameters_in(model, recipe.freeze, "freeze")), dict[str, tuple[Budget, ...]]()
    for part, when in recipe.unfreeze.items():
        names = [name for name in parameters_in(model, [part], "unfreeze") if name in held]
        if not names:
            raise UsageError(f"unfreeze: {part!r} is not frozen: name it under freeze too")
        until |= {name: (*until.get(name, ()), Budget.parse(when)) for name in names}
    return until


def _to_regress(objective: Regress, data: Data) -> Regress:
    from flatout.data.fitted.table_rows import TableHost  # few runs need it

    if isinstance(data.host, TableHost) and data.classes is not None:
        label = data.host.label.name
        raise UsageError(
            f"regress needs a number as label, and {label!r} was read as {data.classes} classes: "
            "set target: number under data, or objective: classify"
        )
    return objective if data.target_scale is None else objective.scaled(*data.target_scale)


def _weighted(written: Any, objective: Objective, data: Data) -> Objective:
    """The objective with a weight for each class."""
    if not isinstance(objective, Classify | Binary):
        instead = "use pos_weight of the objective" if objective.name == "multilabel" else "remove it"
        raise UsageError(f"class_weights needs objective classify or binary, this is {objective.name}: {instead}")
    if objective.class_weights is not None:
        raise UsageError(f"class_weights is given twice, also as an option of {objective.name}: remove one of them")
    labels = None
    if written == "balanced":
        if data.train.stream is not None or "y" not in data.train.schema:
            raise UsageError(
                "class_weights: balanced counts the labels of all training rows, which a stream lacks: give a list"
            )
        labels = data.train.column("y")
    classes = 2 if isinstance(objective, Binary) else objective.outputs_for(classes=data.classes)
    return replace(objective, class_weights=weights_of(written, classes, data.labels, labels))


def _best_by(recipe: Recipe, objective: Objective, named: Sequence[NamedMetric]) -> BestBy | None:
    """The metric that the recipe chooses; None: that of the objective, or of early_stop."""
    chosen = None if recipe.best is None else chosen_best(recipe.best)
    stop = recipe.early_stopping(objective.metric if chosen is None else chosen[0])
    if chosen is None:
        if stop is None or stop.metric == objective.metric:
            return None
        chosen = stop.metric, None
    metric, better = chosen
    if stop is not None and stop.metric != metric:
        raise UsageError(f"best is {metric} and early_stop waits for {stop.metric}: name one metric, under best")
    if better is None:
        if metric == objective.metric:
            better = objective.better
        else:
            own = [one.better for one in named if metric == one.name or metric.startswith(f"{one.name}.")]
            better = own[0] if own else "max" if metric in HIGHER_IS_BETTER else "min"
    if better is None:
        raise UsageError(f"best: {metric} does not say whether more is better: write best: {{metric: {metric}, better: max}}")
    return BestBy(metric, better == "max")


def check_job(job: Job, device: torch.device) -> None:
    """Runs a few real rows through the model, so that errors are raised before anything is written."""
    if is_dataless(job.model):
        copied, calling = callable_copy(job.model)
        with suppress(*LOOKS_AT_NUMBERS):  # the plan says why such a model has no prediction
            _check_model(replace(job, model=copied), torch.device("cpu"), calling, stand_in)
    else:
        job.model.to(device)
        _check_model(job, device)
    if "mix" in job.data.schema() and job.objective.name not in ("classify", "custom"):
        raise UsageError(f"mixup and cutmix mix labels of classes: use objective: classify, not {job.objective.name}")
    budget_of(job, Meters(device))  # a budget that can't be counted here is an error


def _check_model(
    job: Job,
    device: torch.device,
    calling: Callable[[], AbstractContextManager[None]] = nullcontext,
    real: Callable[[Any], Any] = lambda tree: tree,
) -> None:
    """For a model without data, `calling` is the context of its calls and `real` fills its output with numbers."""
    batch, was_training = few_rows(job.data, device), job.model.training
    job.model.eval()
    with torch.no_grad():
        target = job.data.target()
        outputs = job.objective.outputs_for(
            classes=job.data.classes, target_shape=target.shape if target else (), vocabulary=job.data.vocabulary
        )
        with calling():
            given = first_output(job, batch)
        output = real(given)
        job.objective.check(output, batch, outputs)
        with calling():
            lost = job.objective.loss(given, batch)
        loss_sum, weight = real(lost)
        metrics: list[str] = []
        if _awaited(job) or not is_dataless(job.model):  # slow for the logits of a large vocabulary
            meter = job.objective.meter(device)
            meter.update(output, loss_sum, weight, batch)
            metrics = list(meter.result())
            if job.named_metrics:
                metrics = list(dict.fromkeys([*metrics, *_named(job, batch, device, calling, real)]))
    job.model.train(was_training)
    _check_metrics(job, metrics)


def _named(
    job: Job,
    batch: Batch,
    device: torch.device,
    calling: Callable[[], AbstractContextManager[None]],
    real: Callable[[Any], Any],
) -> list[str]:
    """Names of the metrics that the recipe names, after a try with a few rows."""
    evaluated = job.evaluated
    with calling():
        given = evaluated.forward(job.model, batch)
        lost = evaluated.loss(given, batch)
    meter = evaluated.meter(device)
    loss_sum, weight = real(lost)
    meter.update(real(given), loss_sum, weight, batch)
    try:
        return [name for name in meter.result() if not name.startswith(BASELINE)]
    except ModelError as error:
        if not isinstance(error.__cause__, ValueError):  # a user's function may need more rows than these few
            raise
        return [metric.name for metric in job.named_metrics]


def check_loss_head(job: Job, device: torch.device, kind: str) -> None:
    """A loss computed from the model's `hidden` and `head` must be the same as that of its forward."""
    if kind not in FROM_HIDDEN or is_dataless(job.model):  # without numbers there is nothing to compare
        return
    batch, was_training = few_rows(job.data, device), job.model.training
    job.model.to(device).eval()
    with torch.no_grad():
        losses = [job.objective.with_loss_head(one, job.model, device)(job.model, batch) for one in ("plain", kind)]
    job.model.train(was_training)
    whole, parts = (float(loss) / max(float(weight), 1.0) for loss, weight in losses)
    if not math.isclose(whole, parts, rel_tol=_SAME_LOSS):
        name = type(job.model).__name__
        raise UsageError(
            f"loss_head={kind} needs the output of {name} to be head(hidden(...)), and it is not: the loss is {parts:.6g} "
            f"from head(hidden(...)) and {whole:.6g} from forward. Let hidden(...) do everything that forward does before "
            "the head, or --off loss_head"
        )


def few_rows(data: Data, device: torch.device) -> Batch:
    """Two prepared rows, without augmentation; of a stream, blank ones."""
    if data.train.stream is not None and data.validation is None:  # reading rows would take them from the run
        columns = data.train.schema.items()
        blank = {name: torch.zeros((2, *column.shape), dtype=column.dtype, device=device) for name, column in columns}
        none = torch.zeros(2, dtype=torch.int64, device=device)
        return apply(data.transforms(), blank, Keys(0, none, none))
    if data.train.shapes_vary and (rows := data.train.by_length) is not None:
        return BucketFeed(rows, FeedOptions(2, device, data.transforms())).shortest()  # a model for one length fails here
    source = data.train if data.validation is None else data.validation
    return next(iter(EvalFeed(source, data.prepare, min(2, len(source)), device, tier="pinned")))


def first_output(job: Job, batch: Batch) -> Any:
    """The model's output for a batch. An error names the shapes and the line of the model."""
    try:
        return job.objective.forward(job.model, batch)
    except (FlatoutError, *LOOKS_AT_NUMBERS):
        raise
    except Exception as error:
        shapes = ", ".join(f"{name} {list(column.shape)} {str(column.dtype)[6:]}" for name, column in batch.items())
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename][-1]
        raise ModelError(
            f"{type(job.model).__name__} failed on its first batch ({shapes}): {type(error).__name__}: {error} "
            f"({own.filename}:{own.lineno})"
        ) from error


def _awaited(job: Job) -> dict[str, str]:
    """Metrics that budget and early_stop use, by the recipe's key."""
    wanted = {}
    if job.budget.target is not None:
        wanted["budget"] = job.budget.target.metric
    if job.early_stop is not None:
        wanted["early_stop"] = job.early_stop.metric
    elif job.best_by is not None:
        wanted["best"] = job.best_by.metric
    return wanted


def _check_metrics(job: Job, metrics: list[str]) -> None:
    for key, metric in _awaited(job).items():
        if metric not in metrics:
            raise UsageError(f"{key} names the metric {metric!r}; {did_you_mean(metric, metrics)}")
        if job.data.validation is None or job.evaluate_every is None:
            raise UsageError(f"{key} needs {metric}, but nothing is evaluated: set data.holdout and evaluate")


@dataclass(frozen=True)
class Identity:
    """Two runs are the same if recipe, code and content of the data are. How processes share the work does not count."""

    whole: str
    parts: Mapping[str, str]  # one digest each: recipe, code, data


def identity(recipe: Recipe, job: Job) -> Identity:
    written = recipe.written()
    written.pop("track", None)  # who watches a run is no part of it
    others = settings_of(SettingScope.PROCESSES)  # a run can be resumed with any number of processes in any mesh
    written["settings"] = {name: value for name, value in recipe.settings.items() if name not in others}
    asked = json.dumps(written, sort_keys=True, default=lasting_text).encode()
    own: list[Callable[..., Any]] = [*job.objective.functions, *(one for named in job.named_metrics for one in named.functions)]
    own += [recipe.optimizer] if callable(recipe.optimizer) else []
    code = "".join([source_hash(recipe.model), *map(source_text, [*own, *(knob.turn for knob in recipe.own_knobs)])]).encode()
    data = job.data.fingerprint().encode()
    digests = [hashlib.sha256(part).hexdigest()[:32] for part in (asked + code + data, asked, code, data)]
    return Identity(digests[0], dict(zip(("recipe", "code", "data"), digests[1:], strict=True)))


def code_of(recipe: Recipe, job: Job) -> str:
    """The source of the code that the recipe names, and the values that it uses, to show differences."""
    own: list[Callable[..., Any]] = [*job.objective.functions, *(one for named in job.named_metrics for one in named.functions)]
    own += [recipe.optimizer] if callable(recipe.optimizer) else []
    own += [knob.turn for knob in recipe.own_knobs]
    return "\n".join([code_text(recipe.model), *(source_text(one, values=True) for one in own)])
