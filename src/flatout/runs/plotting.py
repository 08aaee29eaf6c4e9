"""The curves of a run as a matplotlib figure."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from flatout.base.errors import MissingExtra, UsageError
from flatout.base.events import Event
from flatout.runs.scores import overall


def plot_events(events: Iterable[Event], title: str) -> Any:
    """The loss of training by steps, and every metric of the evaluations below it."""
    losses: dict[int, float] = {}
    metrics: dict[str, dict[int, float]] = {}
    for event in events:
        if event.get("kind") == "step" and event.get("loss") is not None:
            losses[event["step"]] = event["loss"]
        for name, value in overall(event.get("metrics", {})).items() if event.get("kind") == "evaluation" else ():
            if value is not None:
                metrics.setdefault(name, {})[event["step"]] = value
    if not losses and not metrics:
        raise UsageError(f"{title} has no step to plot yet")
    try:
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", "run.plot()") from error
    others = [name for name in metrics if name != "loss"]
    figure, every = pyplot.subplots(1 + len(others), 1, figsize=(7, 2.6 * (1 + len(others))), sharex=True, squeeze=False)
    axes = [row[0] for row in every]
    axes[0].plot(list(losses), list(losses.values()), label="training")
    if "loss" in metrics:
        axes[0].plot(list(metrics["loss"]), list(metrics["loss"].values()), marker="o", markersize=3, label="validation")
        axes[0].legend()
    axes[0].set_ylabel("loss")
    axes[0].set_title(title)
    for axis, name in zip(axes[1:], others, strict=True):
        axis.plot(list(metrics[name]), list(metrics[name].values()), marker="o", markersize=3)
        axis.set_ylabel(name)
    axes[-1].set_xlabel("step")
    figure.tight_layout()
    pyplot.close(figure)  # a notebook shows the returned figure; it must not show it a second time
    return figure
