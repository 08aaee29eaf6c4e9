"""The verbs over runs and packages: export, load, predict. Each is a CLI command too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.tree import Doc
from flatout.machine.device import pick_device
from flatout.packaging import export as exporting
from flatout.packaging.explaining import package_doc
from flatout.packaging.folder import is_package
from flatout.packaging.lineage import lineage_doc
from flatout.packaging.package import Package, open_package
from flatout.plan import make
from flatout.recipe.schema import Recipe
from flatout.runs import predict as of_runs
from flatout.runs import record
from flatout.runs.record import Run
from flatout.runs.trained import CACHE

__all__ = ["explain_package", "export", "exported_place", "load", "predict", "why"]


def load(name: str | Path, *, runs: Path | str = "runs", recipe: Recipe | None = None, **objects: Any) -> Any:
    """A `Package` by its folder; or a `Run` by its name in `runs`, by its folder, or `last`.

    What a run was made of in Python is given again: `model=Net`, `objective` or `optimizer`; or the whole `recipe`.
    """
    if is_package(Path(name)):
        return open_package(Path(name))
    return record.load(name, runs=runs, recipe=recipe, **objects)


def export(
    run: Run,
    out: Path | str | None = None,
    *,
    to: str = "package",
    cache: Path | str | None = CACHE,
    say: Callable[[str], None] = lambda line: None,
) -> Any:
    """A finished run as a `Package`: one folder that takes raw rows and gives named answers, checked against the run.

    `to="onnx"` writes one file for onnxruntime, returned as a Path. `out` is `package`, or `model.onnx`, by default.
    """
    if to == "onnx":
        exporting.export_onnx(run, Path(out or "model.onnx"), cache=_folder(cache), say=say)
        return Path(out or "model.onnx")
    if to != "package":
        raise UsageError(f"to is 'package' or 'onnx', got {to!r}")
    return exporting.export(run, Path(out or "package"), cache=_folder(cache), say=say).package


def exported_place(run: Run, cache: Path | None) -> Path:
    """Where a run's package is kept that is made on the way to something else: the same run is exported once."""
    return (cache if cache is not None else run.path) / "served" / run.folder.identity


def predict(
    model: Run | Package,
    data: Any,
    *,
    keep: str | Sequence[str] = (),
    each_class: bool = False,
    device: str = "auto",
    cache: Path | str | None = CACHE,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Columns of predictions for every row, in the order of the data; see `runs.predict`."""
    if isinstance(model, Run):
        return of_runs.predict(model, data, keep=keep, each_class=each_class, device=device, cache=cache, say=say)
    return model.predict(data, keep=keep, each_class=each_class, device=pick_device(device), cache=_folder(cache), say=say)


def explain_package(
    package: Package,
    *,
    device: str = "auto",
    cache: Path | str | None = CACHE,
    say: Callable[[str], None] = lambda line: None,
) -> Doc:
    """The runtimes on this machine by batch size, which one is taken, and its share of the ceiling. Measures once."""
    place, kept = pick_device(device), _folder(cache)
    measured = package.measured(place, kept, compilers=True, say=say)
    return package_doc(package, measured, place, make.ceilings_of(place, kept))


def why(package: Package) -> Doc:
    """From the package back to its run, plan, recipe and data."""
    return lineage_doc(package)


def _folder(cache: Path | str | None) -> Path | None:
    return None if cache is None else Path(cache)
