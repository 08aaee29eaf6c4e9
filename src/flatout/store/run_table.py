"""Runs by any of their figures: sorted, filtered, with the columns that were asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError, UsageError, did_you_mean
from flatout.base.tree import Doc, Fields, Table, TableColumn, TextLine
from flatout.store.compare import asked_of, settings_of, value_cell
from flatout.store.run_folder import RunFolder, all_runs

_FIGURES = ("steps", "samples", "train_seconds", "wall_seconds", "samples_per_s", "tokens_per_s", "peak_memory_bytes")
_HIGH_IS_GOOD = ("samples_per_s", "tokens_per_s")
_LOW_IS_GOOD = ("loss", "perplexity", "error", "rmse", "mae", "mse", "mape", "brier")  # how names of metrics end
_MOST_DIFFERENCES = 6
_CONDITION = re.compile(r"\s*([\w.]+)\s*(>=|<=|!=|==|=|>|<)\s*(.*\S)\s*")


@dataclass(frozen=True)
class RunValues:
    """What is known of a run: `figures` were measured, `asked` is its recipe and its settings."""

    name: str
    status: str
    metrics: Mapping[str, Any]
    figures: Mapping[str, Any]
    asked: Mapping[str, Any]

    @property
    def all(self) -> dict[str, Any]:
        """A metric wins over a key of the recipe with the same name."""
        return {**self.asked, **self.figures, **self.metrics, "name": self.name, "status": self.status}


def runs_table(runs: Path, sort: str | None, show: Sequence[str], where: Sequence[str], *, reverse: bool = False) -> Doc:
    """Without `show`, the keys of the recipe in which the runs differ. `sort` puts the best metric first, and other keys in
    ascending order; runs without a value come last."""
    damaged: dict[Path, StoreError] = {}
    found = [one for folder in all_runs(runs, damaged.__setitem__) if (one := _values(folder, damaged)) is not None]
    if not found:
        return Doc((TextLine(f"no runs in {runs} yet: flatout run recipe.yaml"), Table("runs", (), ())))
    known = list(dict.fromkeys(key for one in found for key in one.all))
    conditions = [Condition.parse(written, known) for written in where]
    chosen = [one for one in found if all(condition.holds(one.all) for condition in conditions)]
    key = None if sort is None else full_key(sort, known, "--sort")
    if key is not None:
        chosen = _sorted(chosen, key, reverse)
    elif reverse:
        chosen.reverse()
    shown = [full_key(name, known, "--show") for name in show]
    more = 0
    if not show:
        differing = [name for name in _differing(chosen) if name != key]
        shown, more = differing[:_MOST_DIFFERENCES], max(0, len(differing) - _MOST_DIFFERENCES)
    keys = list(dict.fromkeys(["name", "status", *([key] if key is not None else []), *shown]))
    titles = {"name": "run"}
    columns = [TableColumn(name, titles.get(name, name), right=name not in ("name", "status")) for name in keys]
    rows = [{name: value_cell(one.all.get(name)) for name in keys} for one in chosen]
    notes = [f"({len(found) - len(chosen)} of {len(found)} runs left out by --where)"] if len(chosen) < len(found) else []
    notes += [f"({more} more keys differ: name those to see with --show)"] if more else []
    whys = [str(error) for error in damaged.values()]
    lines = [TextLine(line) for line in [*notes, *(f"damaged: {why}" for why in whys)]]
    return Doc((Table("runs", columns, rows), *lines, *([Fields({"damaged": whys})] if whys else [])))


@dataclass(frozen=True)
class Condition:
    """Such as lr>1e-3, batch=64 or status!=failed. A run without the value does not match."""

    key: str
    sign: str
    value: str

    @classmethod
    def parse(cls, written: str, known: Sequence[str]) -> Condition:
        found = _CONDITION.fullmatch(written)
        if found is None:
            raise UsageError(f"--where needs a key, one of = != > >= < <= and a value, such as 'lr>1e-3'; got {written!r}")
        name, sign, value = found.groups()
        key = full_key(name, known, "--where")
        if sign[0] in "<>" and _number(value) is None:
            raise UsageError(f"--where: {sign} compares numbers, got {value!r}; compare text with = or !=")
        return cls(key, "=" if sign == "==" else sign, value.strip("'\""))

    def holds(self, values: Mapping[str, Any]) -> bool:
        there = values.get(self.key)
        if there is None:
            return False
        left, right = _number(there), _number(self.value)
        if left is None or right is None:
            same = str(there).lower() == self.value.lower()
            return same if self.sign == "=" else not same if self.sign == "!=" else False
        results = {"=": left == right, "!=": left != right, ">": left > right, ">=": left >= right, "<": left < right}
        return results.get(self.sign, left <= right)


def full_key(name: str, known: Sequence[str], option: str) -> str:
    """A key as it is, or the end of exactly one: `layers` for model.gpt.layers, `precision` for plan.precision."""
    if name in known:
        return name
    ends = [key for key in known if key.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise UsageError(f"{option}: {name!r} can be {', '.join(ends)}: write one of these")
    raise UsageError(f"{option}: no run has {name!r}; {did_you_mean(name, known)}")


def _values(folder: RunFolder, damaged: dict[Path, StoreError]) -> RunValues | None:
    try:
        result = folder.result
        figures = {key: result[key] for key in _FIGURES if result.get(key) is not None}
        asked = {**asked_of(folder), **settings_of(folder)} if folder.begun else {}
        return RunValues(folder.name, folder.status, dict(result.get("metrics") or {}), figures, asked)
    except StoreError as error:
        damaged[folder.path] = error
        return None


def _sorted(runs: Sequence[RunValues], key: str, reverse: bool) -> list[RunValues]:
    is_metric = any(key in one.metrics for one in runs)
    high_first = (is_metric and not key.endswith(_LOW_IS_GOOD)) or key in _HIGH_IS_GOOD
    valued = [one for one in runs if _is_value(one.all.get(key))]
    others = [one for one in runs if not _is_value(one.all.get(key))]

    def place(one: RunValues) -> tuple[bool, float, str]:
        value = one.all[key]
        number = _number(value)
        return (number is None, number or 0.0, str(value))

    return [*sorted(valued, key=place, reverse=high_first != reverse), *others]


def _differing(runs: Sequence[RunValues]) -> list[str]:
    keys = dict.fromkeys(key for one in runs for key in one.asked if not key.startswith("plan.") and key != "name")
    return [key for key in keys if any(one.asked.get(key) != runs[0].asked.get(key) for one in runs)]


def _is_value(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
