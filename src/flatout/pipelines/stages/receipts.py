"""What the files that a stage made say of it: its verdict, its figures in words, and the energy and memory that it measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.files import read_json
from flatout.pipelines.stages.resolved import ResolvedStage

_GPU_CONTEXT_BYTES = 600 << 20  # what CUDA takes of a process's device memory before the first tensor
_MOST_METRICS = 3


@dataclass(frozen=True)
class StageMeasures:
    growing_s: float | None = None
    joules: float | None = None
    gpu_bytes: int | None = None


@dataclass(frozen=True)
class StageWords:
    verdict: str = ""
    words: str = ""


def measures(stage: ResolvedStage, made: Path | None) -> StageMeasures:
    """Of a run that is its own meter. Without one: unknown, never 0."""
    if stage.kind != "train" or made is None:
        return StageMeasures()
    result = _read(made / "result.json")
    device = _of(_of(result, "energy"), "device")
    joules: Any = device.get("joules")
    on_gpu = str(_of(_of(result, "plan"), "settings").get("device", "cpu")).startswith("cuda")
    peak: Any = result.get("peak_memory_bytes")
    loop: Any = result.get("wall_seconds")
    return StageMeasures(
        float(loop) if _is_number(loop) else None,
        float(joules) if _is_number(joules) else None,
        int(peak) + _GPU_CONTEXT_BYTES if on_gpu and _is_number(peak) else None if on_gpu else 0,
    )


def told_of(stage: ResolvedStage) -> StageWords:
    """Of the result in its place."""
    if stage.kind == "gate":
        found = _read(stage.product / "gate.json")
        return StageWords(str(found.get("verdict", "")), f"{str(found.get('verdict', '')).upper()}: {found.get('why', '')}")
    if stage.kind == "data":
        found = _read(stage.product / "columns.json")
        problems = found.get("problems") or []
        if problems:
            count = "1 expectation is" if len(problems) == 1 else f"{len(problems)} expectations are"
            return StageWords("fail", "\n".join([f"{count} not met:", *(f"  - {one}" for one in problems)]))
        return StageWords("pass", str(found.get("words", "")))
    if stage.kind == "train":
        return StageWords(words=_metrics(_of(_read(stage.product / "result.json"), "metrics")))
    if stage.kind == "evaluate":
        found = _read(stage.product / "metrics.json")
        return StageWords(words=_metrics(_of(found, "metrics") or found))
    return StageWords()


def _metrics(found: Mapping[str, Any]) -> str:
    shown = [f"{name} {value:.4g}" for name, value in found.items() if _is_number(value) and not name.startswith("train_")]
    return ", ".join(shown[:_MOST_METRICS])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _of(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = found.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
