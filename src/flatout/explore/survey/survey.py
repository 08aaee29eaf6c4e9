"""`flatout data`: reads the data of a recipe, plans where it would be stored, and times it. Trains nothing."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import FlatoutError
from flatout.data.data import Data
from flatout.data.feeds.tuning import ReadingBudget
from flatout.explore.guard.derivable import ColumnSuggestion
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.of_recipe import report_of
from flatout.explore.survey.columns import ColumnWords, LabelWords, columns_of, label_of
from flatout.explore.survey.speeds import Speeds
from flatout.explore.survey.stages import measure
from flatout.machine.ceilings import Ceilings
from flatout.machine.device import device_name, pick_device
from flatout.machine.host import free_host_bytes
from flatout.measure.clock import Stopwatch
from flatout.models.dataless import WeightsBudget
from flatout.plan.make import ceilings_of, default_plan
from flatout.plan.plan import Choice, Plan, RejectedSetting
from flatout.recipe.build import build_job
from flatout.recipe.schema import Recipe
from flatout.runs import verbs


@dataclass(frozen=True)
class PartSize:
    """`rows` is None for an iterable of unknown length."""

    name: str
    rows: int | None
    stored_bytes: int | None


@dataclass(frozen=True)
class Survey:
    """Everything that is shown. `no_plan` is the reason if there is no plan: a problem of the model, not of the data."""

    name: str
    machine: str
    parts: tuple[PartSize, ...]
    files: int | None
    columns: tuple[ColumnWords, ...]
    label: LabelWords | None
    data: Mapping[str, Any]
    steps: tuple[str, ...]
    tier: Choice
    rejected: tuple[RejectedSetting, ...]
    speeds: Speeds
    notes: tuple[str, ...]
    no_plan: str | None = None
    compression: Choice | None = None  # if the tier writes to the cache
    findings: tuple[GuardFinding, ...] = ()  # faults of a table
    suggested: tuple[ColumnSuggestion, ...] = ()  # derived columns of a table that are worth a try


def survey(recipe: Recipe, *, seconds: float = 5.0, cache: Path | None = verbs.CACHE) -> Survey:
    """Measuring takes about `seconds`, in addition to reading the files and probing the machine for the first time."""
    with Stopwatch() as opening:
        data = recipe.load_data(cache)
    device = pick_device(recipe.pins.get("device", "auto"))
    plan, no_plan = _plan(recipe, cache)
    tier = _tier(plan, no_plan)
    in_memory = data.train.in_memory or data.tokens_per_row > 1  # windows of text are cut out of a stream in memory
    stages = measure(data, str(tier.value), recipe.batch, device, seconds, in_memory=in_memory, seed=recipe.seed)
    sizes = list(_sizes(recipe))
    endless = data.train.stream is not None
    budget, parts = ReadingBudget.here(), tuple(_parts(data))
    speeds = Speeds(
        unit=_unit(data),
        row_bytes=data.row_bytes,
        stored_bytes=0 if endless else data.train.stored_bytes,
        in_memory=in_memory,
        on_cpu=device.type == "cpu",
        tier=str(tier.value),
        cores=budget.cores,
        threads=stages.loading.workers or budget.threads,
        stages=stages,
        opening_s=opening.elapsed_s,
        wanted_rows_per_s=None if plan is None else plan.prediction.rate(plan.batch),
        opened_rows=sum(part.rows or 0 for part in parts),
        file_bytes=sum(sizes) or None,
        parsed=_is_text(recipe.data),
        host_free_bytes=free_host_bytes(),
        disk_free_bytes=shutil.disk_usage(recipe.folder).free,
        **_ceilings(ceilings_of(device, cache)),
    )
    notes = [*data.notes]
    bad = data.train.bad
    if bad is not None and (said := bad.summary()) and said not in notes:
        notes.append(said)
    report = report_of(recipe.data, recipe.folder, suggest=True)
    notes += [] if report.unlooked is None else [f"the data was not checked for faults: {report.unlooked}"]
    return Survey(
        name=recipe.source.name if recipe.source else recipe.stem,
        machine=device_name(device),
        parts=parts,
        files=len(sizes) or None,
        columns=columns_of(data),
        label=label_of(data),
        data={} if endless else data.describe(),
        steps=tuple(step.name for step in stages.transforms),
        tier=tier,
        rejected=() if plan is None else tuple(r for r in plan.rejected if r.name == "tier"),
        speeds=speeds,
        notes=tuple(notes),
        no_plan=no_plan,
        compression=_choice(plan, "cache_compression"),
        findings=report.findings,
        suggested=report.suggested,
    )


def _plan(recipe: Recipe, cache: Path | None) -> tuple[Plan | None, str | None]:
    """Without a plan if only the model is wrong."""
    try:
        return default_plan(recipe, build_job(recipe, weights_budget=WeightsBudget()), cache), None
    except FlatoutError as error:
        return None, str(error)


def _tier(plan: Plan | None, no_plan: str | None) -> Choice:
    if plan is None:
        return Choice("tier", "auto", f"there is no plan, since {no_plan}")
    return next(choice for choice in plan.choices if choice.name == "tier")


def _choice(plan: Plan | None, name: str) -> Choice | None:
    return None if plan is None else next((choice for choice in plan.choices if choice.name == name), None)


def _unit(data: Data) -> str:
    if "pixels" in data.train.schema or len(data.schema()["x"].shape) == 3:
        return "images"
    return "windows" if data.tokens_per_row > 1 and "length" not in data.train.schema else "rows"


def _parts(data: Data) -> Iterator[PartSize]:
    for name, source in data.parts().items():
        endless = source.stream is not None
        yield PartSize(name, source.epoch_rows, None if endless else source.stored_bytes)


def _ceilings(ceilings: Ceilings | None) -> dict[str, float | None]:
    if ceilings is None:
        return {}
    found = {
        "disk_bytes_per_s": ceilings.disk_read_bytes_per_s,
        "link_bytes_per_s": ceilings.host_to_device_pinned_bytes_per_s,
        "memory_bytes_per_s": ceilings.copy_bytes_per_s if torch.device(ceilings.device).type == "cpu" else None,
    }
    return {name: None if measured is None else measured.value for name, measured in found.items()}


def _is_text(written: Any) -> bool:
    """Whether the files of a table are text: CSV or JSON lines."""
    table = written.get("table") if isinstance(written, Mapping) else None
    first = table[0] if isinstance(table, list) and table else table
    return isinstance(first, str) and not first.lower().endswith((".parquet", ".pq", ".arrow", ".feather"))


def _sizes(recipe: Recipe) -> Iterator[int]:
    """The bytes of all local files that the recipe names, each counted once."""
    if not isinstance(recipe.data, Mapping):
        return
    main = [value for name, value in recipe.data.items() if name in ("table", "images", "text", "arrays", "validation", "test")]
    for path in sorted({file for value in main for file in _files(value, recipe.folder)}):
        yield os.path.getsize(path)


def _files(written: Any, folder: Path) -> Iterator[str]:
    if isinstance(written, Mapping):
        for value in written.values():
            yield from _files(value, folder)
    elif isinstance(written, list):
        for value in written:
            yield from _files(value, folder)
    elif isinstance(written, str) and "://" not in written:
        path = str(folder / Path(written).expanduser())
        if os.path.isdir(path):
            yield from (os.path.join(place, name) for place, _, names in os.walk(path) for name in names)
        else:
            yield from (
                match
                for match in ([path] if os.path.isfile(path) else glob.glob(path, recursive=True))
                if os.path.isfile(match)
            )
