"""Metrics in a terminal, each with its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.plain_yaml import read_yaml
from flatout.base.units import show_metric

_BASELINE = "baseline."


def read_metrics(text: str) -> Any:
    """The value of --metrics: YAML, as in a recipe."""
    value, problems = read_yaml(text)
    if problems or value is None:
        raise UsageError(f"--metrics needs names, such as '[f1, auroc]'; got {text!r}")
    return value


def print_scores(metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        if not name.startswith(_BASELINE):
            baseline = metrics.get(_BASELINE + name)
            print(f"{name:12} {value:.6g}" + ("" if baseline is None else f"   (baseline {baseline:.6g})"))


def overall(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Without values of single classes and baselines."""
    return {name: value for name, value in metrics.items() if "." not in name}


def baselines_of(metrics: Mapping[str, Any]) -> str:
    """On one line; empty if there are none."""
    found = {name.removeprefix(_BASELINE): value for name, value in metrics.items() if name.startswith(_BASELINE)}
    return ", ".join(f"{name} {show_metric(value)}" for name, value in found.items())
