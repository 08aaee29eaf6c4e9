"""Compare runs: a list of all runs, and the differences between two in settings and results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_count, show_seconds
from flatout.store.run_folder import RunFolder, all_runs


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


def compare_doc(a: RunFolder, b: RunFolder) -> Doc:
    asked = _differences({**_asked(a), **_settings(a)}, {**_asked(b), **_settings(b)})
    machine = _differences(_machine(a), _machine(b))
    did = _outcomes(a.parsed_result(_outcome), b.parsed_result(_outcome))
    columns = (TableColumn("key", ""), TableColumn("a", a.name, right=True), TableColumn("b", b.name, right=True))
    outcome_columns = (*columns, TableColumn("ratio", "ratio", right=True))
    return Doc(
        (
            Fields({"a": a.name, "b": b.name}),
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
    return {**plain, **(result.get("metrics") or {})}


def _outcomes(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for key in dict.fromkeys((*left, *right)):
        one, other = left.get(key), right.get(key)
        if one is None and other is None:
            continue
        numbers = all(isinstance(v, int | float) for v in (one, other))
        ratio = other / one if numbers and one and other is not None else None
        rows.append(
            {
                "key": key,
                "a": _cell(one),
                "b": _cell(other),
                "ratio": Cell(ratio, f"{ratio:.3f}x") if ratio is not None else None,
            }
        )
    return rows


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "a": _cell(a.get(key)), "b": _cell(b.get(key))}
        for key in dict.fromkeys((*a, *b))
        if a.get(key) != b.get(key)
    ]


def _asked(folder: RunFolder) -> dict[str, Any]:
    return folder.parsed("recipe.json", _flat)


def _settings(folder: RunFolder) -> dict[str, Any]:
    return folder.parsed("plan.json", lambda plan: {f"plan.{key}": value for key, value in plan["settings"].items()})


def _machine(folder: RunFolder) -> dict[str, Any]:
    kept = ("platform", "python", "torch", "cuda", "driver")
    return folder.parsed("environment.json", lambda facts: {key: facts.get(key) for key in kept})


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value})
    return flat


def _cell(value: Any) -> Cell:
    return Cell(value, "-" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value))
