"""Finds the unfinished run of this recipe that began on another kind of processor, whose fitted numbers round differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.data.own_fit import with_fit_of
from flatout.engine.job import Job
from flatout.recipe.build import Identity, identity
from flatout.recipe.schema import Recipe
from flatout.store.run_folder import ENDED, RunFolder, all_runs


def description_of_moved(runs: Path, recipe: Recipe, job: Job, own: Identity) -> dict[str, Any] | None:
    """The data.json of the newest such run; None if there is none, or if a newer run has the numbers of this machine."""
    for folder in reversed(list(all_runs(runs))):
        try:
            about = folder.about
            if about["identity"] == own.whole:
                return None
            if not _may_be_it(about, own) or folder.status in (*ENDED, "running"):
                continue
            if (found := _same_but_rounding(folder, recipe, job)) is not None:
                return found
        except StoreError:
            continue  # `flatout runs` shows what is wrong with it
    return None


def _may_be_it(about: Mapping[str, Any], own: Identity) -> bool:
    """Whether recipe and code are equal and the data differ. Older versions did not store them one by one."""
    parts = about.get("parts")
    if not isinstance(parts, Mapping):
        return True
    return all((parts.get(name) == digest) is (name != "data") for name, digest in own.parts.items())


def _same_but_rounding(folder: RunFolder, recipe: Recipe, job: Job) -> dict[str, Any] | None:
    kept = folder.parsed("data.json", dict)
    data = with_fit_of(job.data, kept)
    same = data is not job.data and identity(recipe, replace(job, data=data)).whole == folder.identity
    return kept if same else None
