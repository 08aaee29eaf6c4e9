"""Compare runs: a list of all runs, and the differences between some in settings and results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_bytes, show_count, show_seconds
from flatout.store.run_folder import RATE_FILE, RunFolder, all_runs

_SHOWN = {"_seconds": show_seconds, "_per_s": show_count, "_bytes": show_bytes}  # by the end of the key
_LONGEST = 48  # characters of a value in a table; JSON has all


def runs_doc(runs: Path) -> Doc:
    damaged: dict[Path, StoreError] = {}
    rows = [_summary(folder) for folder in all_runs(runs, damaged.__setitem__)]
    rows += [{"name": path.name, "status": "damaged"} for path in damaged]
    if not rows:
        return Doc((TextLine(f"no runs in {runs} yet: flatout run recipe.yaml"), Table("runs", _COLUMNS, ())))
    whys = [str(error) for error in damaged.values()] + [row.pop("damage") for row in rows if "damage" in row]
    listed = Table("runs", _COLUMNS, rows)
    if not whys:
        return Doc((listed,))
    return Doc((listed, TextLine(), *(TextLine(f"damaged: {why}") for why in whys), Fields({"damaged": whys})))


_COLUMNS = (
    TableColumn("name", "run"), TableColumn("status", "status"), TableColumn("created", "began"),
    TableColumn("steps", "steps", right=True),
    TableColumn("samples_per_s", "samples/s", right=True), TableColumn("train_seconds", "training", right=True),
    TableColumn("metrics", "metrics"),
)  # fmt: skip


def _summary(folder: RunFolder) -> dict[str, Any]:
    created = float(folder.about.get("created", 0))
    began = Cell(created, time.strftime("%Y-%m-%d %H:%M", time.localtime(created)))
    try:
        return {"name": folder.name, "status": folder.status, "created": began, **folder.parsed_result(_figures)}
    except StoreError as error:
        return {"name": folder.name, "status": folder.status, "created": began, "damage": str(error)}


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    rate, seconds = result.get("samples_per_s"), result.get("train_seconds")
    metrics = result.get("metrics") or {}
    return {
        "steps": result.get("steps"),
        "samples_per_s": Cell(rate, show_count(rate)) if rate else None,
        "train_seconds": Cell(seconds, show_seconds(seconds)) if seconds else None,
        "metrics": Cell(metrics, ", ".join(f"{k} {v:.4g}" for k, v in metrics.items() if v is not None and "." not in k)),
    }


def compare_doc(*folders: RunFolder) -> Doc:
    """Two runs or more, called a, b, c, ... in JSON. Two have the ratio of their results too."""
    letters = [_letter(place) for place in range(len(folders))]
    asked = _differences(letters, [{**asked_of(folder), **settings_of(folder)} for folder in folders])
    machine = _differences(letters, [_machine(folder) for folder in folders])
    did = _outcomes(letters, [folder.parsed_result(_outcome) for folder in folders])
    named = [TableColumn(letter, folder.name, right=True) for letter, folder in zip(letters, folders, strict=True)]
    columns = (TableColumn("key", ""), *named)
    outcome_columns = (*columns, TableColumn("ratio", "ratio", right=True)) if len(folders) == 2 else columns
    return Doc(
        (
            Fields({letter: folder.name for letter, folder in zip(letters, folders, strict=True)}),
            TextLine("Differences in recipe and plan" if asked else "Same recipe and plan", strong=True),
            Table("differed", columns, asked),
            *((TextLine(), TextLine("Where it ran", strong=True), Table("machine", columns, machine)) if machine else ()),
            TextLine(),
            TextLine("Results", strong=True),
            Table("outcome", outcome_columns, did),
        )
    )


def _outcome(result: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        key: result.get(key)
        for key in ("status", "steps", "samples", "train_seconds", "samples_per_s", "tokens_per_s", "peak_memory_bytes")
    }
    return {**plain, "cost_usd": result.get("cost_usd"), **(result.get("metrics") or {})}


def _letter(place: int) -> str:
    """a to z, then aa, ab, ..."""
    return ("" if place < 26 else _letter(place // 26 - 1)) + chr(ord("a") + place % 26)


def _outcomes(letters: Sequence[str], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for key in dict.fromkeys(key for result in results for key in result):
        values = [result.get(key) for result in results]
        if all(value is None for value in values):
            continue
        row: dict[str, Any] = {
            "key": key,
            **{letter: _outcome_cell(key, value) for letter, value in zip(letters, values, strict=True)},
        }
        if len(values) == 2:
            one, other = values
            numbers = all(isinstance(value, int | float) for value in values)
            ratio = other / one if numbers and one and other is not None else None
            row["ratio"] = Cell(ratio, f"{ratio:.3f}x") if ratio is not None else None
        rows.append(row)
    return rows


def _differences(letters: Sequence[str], each: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for key in dict.fromkeys(key for one in each for key in one):
        values = [one.get(key) for one in each]
        if any(value != values[0] for value in values):
            rows.append({"key": key, **{letter: value_cell(value) for letter, value in zip(letters, values, strict=True)}})
    return rows


def asked_of(folder: RunFolder) -> dict[str, Any]:
    """The recipe, with inner keys as model.gpt.layers. With lr: auto, `lr` is the rate that was found."""
    asked = folder.parsed("recipe.json", _flat)
    return {**asked, "lr": folder.parsed(RATE_FILE, dict)["lr"]} if (folder.path / RATE_FILE).exists() else asked


def settings_of(folder: RunFolder) -> dict[str, Any]:
    return folder.parsed("plan.json", lambda plan: {f"plan.{key}": value for key, value in plan["settings"].items()})


def _machine(folder: RunFolder) -> dict[str, Any]:
    kept = ("platform", "python", "torch", "cuda", "driver")
    return folder.parsed("environment.json", lambda facts: {key: facts.get(key) for key in kept})


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value})
    return flat


def _outcome_cell(key: str, value: Any) -> Cell:
    show = next((show for ending, show in _SHOWN.items() if key.endswith(ending)), None)
    return value_cell(value) if show is None or not isinstance(value, int | float) else Cell(value, show(value))


def value_cell(value: Any) -> Cell:
    """A value of a recipe, a plan or a result; for people its beginning if it is long, such as what was fitted on the data."""
    text = "-" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
    return Cell(value, text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}... ({len(text):,} characters)")
