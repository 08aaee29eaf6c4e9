"""flatout trains PyTorch models as fast as the machine allows, and proves it.

    import flatout as fo
    run = fo.run(fo.Recipe(data=fo.data.digits(), model="convnet", objective="classify",
                           batch=64, optimizer="adamw", lr=3e-3, budget="15 epochs"))
    print(run.explain())

Importing flatout initialises no device, sets no signal handlers and patches nothing; its parts load when first used.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout import boost as boost
    from flatout import data as data
    from flatout import doctor as doctor
    from flatout.base.errors import FlatoutError as FlatoutError
    from flatout.data.feeds.loader import loader as loader
    from flatout.notebook.start import run as run
    from flatout.packaging.package import Package as Package
    from flatout.packaging.verbs import export as export
    from flatout.packaging.verbs import load as load
    from flatout.packaging.verbs import predict as predict
    from flatout.recipe.schema import Recipe as Recipe
    from flatout.reporting.verb import report as report
    from flatout.runs.evaluate import evaluate as evaluate
    from flatout.runs.layers.summary import summary as summary
    from flatout.runs.one_batch.overfit import overfit as overfit
    from flatout.runs.rates.verb import find_lr as find_lr
    from flatout.runs.record import Run as Run
    from flatout.runs.verbs import explain as explain
    from flatout.shrinking.verb import shrink as shrink
    from flatout.tuning.verb import tune as tune

__version__ = "0.1.0"
__all__ = [
    "FlatoutError",
    "Package",
    "Recipe",
    "Run",
    "boost",
    "data",
    "doctor",
    "evaluate",
    "explain",
    "export",
    "find_lr",
    "load",
    "loader",
    "overfit",
    "predict",
    "report",
    "run",
    "shrink",
    "summary",
    "tune",
]

_HOMES = {
    "FlatoutError": "flatout.base.errors",
    "Package": "flatout.packaging.package",
    "Recipe": "flatout.recipe.schema",
    "Run": "flatout.runs.record",
    "boost": "flatout.boost",
    "data": "flatout.data",
    "doctor": "flatout.doctor",
    "evaluate": "flatout.runs.evaluate",
    "explain": "flatout.runs.verbs",
    "export": "flatout.packaging.verbs",
    "find_lr": "flatout.runs.rates.verb",
    "load": "flatout.packaging.verbs",
    "loader": "flatout.data.feeds.loader",
    "overfit": "flatout.runs.one_batch.overfit",
    "predict": "flatout.packaging.verbs",
    "report": "flatout.reporting.verb",
    "run": "flatout.notebook.start",
    "shrink": "flatout.shrinking.verb",
    "summary": "flatout.runs.layers.summary",
    "tune": "flatout.tuning.verb",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        hint = ""
        if name in ("Trainer", "Learner", "fit", "train"):
            hint = ": fo.run(recipe), or fo.run(data=..., model=...), trains"
        elif name in ("lr_find", "LearningRateFinder", "Tuner"):
            hint = ": fo.find_lr(recipe) finds a learning rate"
        raise AttributeError(f"module 'flatout' has no attribute {name!r}{hint}")
    home = _imported(_HOMES[name])
    return home if _HOMES[name] == f"flatout.{name}" else getattr(home, name)


def _imported(name: str) -> Any:
    """With the garbage collector paused: a collection over all of torch's objects takes longer than these imports."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
