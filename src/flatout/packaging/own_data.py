"""The data that a run was trained on, as it was prepared then; also from a package of that run."""

from __future__ import annotations

from pathlib import Path

from flatout.base.errors import DataError
from flatout.data.data import Data
from flatout.data.own_fit import with_fit_of
from flatout.packaging.package import Package
from flatout.runs.record import Run
from flatout.store.run_folder import open_run


def data_of(run: Run, cache: Path | None) -> Data:
    """DataError if its files have changed since."""
    kept = run.folder.read("data.json")
    data = with_fit_of(run.recipe.load_data(cache), kept)
    if kept["fingerprint"] != data.fingerprint():
        raise DataError("its files have changed since")
    return data


def run_behind(package: Package) -> Run:
    """The run that the package was exported from. StoreError if it is no longer there."""
    from_run = package.card["run"]
    folder = open_run(Path(from_run["path"]))
    if folder.identity != from_run["identity"]:
        raise DataError(f"another run is at {from_run['path']} now")
    return Run(folder)


def data_behind(package: Package, cache: Path | None) -> Data:
    """Of that run."""
    return data_of(run_behind(package), cache)
