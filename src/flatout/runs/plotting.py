"""The curves of a run as a matplotlib figure."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from flatout.base.errors import MissingExtra, UsageError
from flatout.base.events import Event
from flatout.runs.rates.found import FoundRate
from flatout.runs.scores import overall

_MANY = 3  # metrics: then two beside each other


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
    pyplot = _pyplot("run.plot()")
    others = [name for name in metrics if name != "loss"]
    wide = 1 if len(others) < _MANY else 2
    tall = -(-(1 + len(others)) // wide)
    figure, every = pyplot.subplots(tall, wide, figsize=(7 if wide == 1 else 10, 2.6 * tall), sharex=True, squeeze=False)
    axes = [axis for row in every for axis in row]
    for spare in axes[1 + len(others) :]:
        spare.remove()
    axes = axes[: 1 + len(others)]
    axes[0].plot(list(losses), list(losses.values()), label="training")
    if "loss" in metrics:
        axes[0].plot(list(metrics["loss"]), list(metrics["loss"].values()), marker="o", markersize=3, label="validation")
        axes[0].legend()
    axes[0].set_ylabel("loss")
    axes[0].set_title(title)
    for axis, name in zip(axes[1:], others, strict=True):
        axis.plot(list(metrics[name]), list(metrics[name].values()), marker="o", markersize=3)
        axis.set_ylabel(name)
    for axis in axes[-wide:]:
        axis.set_xlabel("step")
        axis.tick_params(labelbottom=True)
    figure.tight_layout()
    pyplot.close(figure)  # a notebook shows the returned figure; it must not show it a second time
    return figure


def plot_rates(found: FoundRate) -> Any:
    """The loss of a range test while the rate rises, and the chosen range."""
    figure, axis = _pyplot("a picture as .png").subplots(figsize=(7, 3.6))
    for losses in found.tests:
        axis.plot(found.rates[: len(losses)], losses[: len(found.rates)], color="C0", alpha=0.3)
    axis.plot(found.rates, found.losses, color="C0")
    axis.set_xscale("log")
    axis.set_xlabel("learning rate")
    axis.set_ylabel("loss")
    if found.lr is not None:
        axis.axvline(found.lr, color="C1")
        axis.axvspan(found.low, found.high, color="C1", alpha=0.15)
        axis.set_title(f"lr {found.lr:.2g}")
    figure.tight_layout()
    _pyplot("a picture as .png").close(figure)
    return figure


def _pyplot(need: str) -> Any:
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", need) from error
