"""Trials of meshes: a few steps of the run in each, in child processes, which may run out of memory or hang.

Every process of the run starts one child with the same rank; the children meet at another address. A trial is a normal run in a
temporary folder: if one child fails, all of them end.
"""

from __future__ import annotations

import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from flatout.base.child import Child
from flatout.base.events import read_events
from flatout.engine.job import Job
from flatout.plan.layouts.fitting import LayoutChoice
from flatout.plan.situation import total_steps
from flatout.recipe.build import PROVISIONAL_LR
from flatout.recipe.schema import Recipe
from flatout.store.run_folder import all_runs
from flatout.world.agreement import by_first
from flatout.world.joining import environment_beside, own_place
from flatout.world.world import World

_WARM, _LEAST, _MOST, _MEASURE_S = (
    3,
    8,
    60,
    5.0,
)  # steps of a trial: warm-up, fewest, most, and the seconds to fill
_COST_S, _SAVING = 30.0, 0.05  # the cost of a trial, and the share of a run that a better mesh may save
_LIMIT_S = 180.0
_CACHE = "FLATOUT_CACHE"


def why_untried(recipe: Recipe, job: Job, options: Sequence[LayoutChoice], limit_s: float) -> str | None:
    """Why no trials are made, or None."""
    if len(options) < 2:
        return "there is only one"
    if recipe.source is None:
        return "other processes can't read a recipe made of Python objects"
    if own_place() is None:
        return "no launcher gave the processes an address to meet at"
    steps, step_s = total_steps(job), options[0].step_s
    if limit_s <= 0 or steps is None or step_s is None or steps * step_s * _SAVING < _COST_S * len(options):
        return "the run is too short for trials"
    return None


def fastest(
    world: World,
    recipe: Recipe,
    job: Job,
    options: Sequence[LayoutChoice],
    *,
    runs: Path,
    cache: Path | None,
    limit_s: float,
    say: Callable[[str], None] = lambda line: None,
) -> LayoutChoice:
    """The fastest measured option; the first one if nothing could be measured. Every process of the world calls it."""
    if why_untried(recipe, job, options, limit_s) is not None:
        return options[0]
    from flatout.runs.layout_search import LayoutSearch, LayoutTimes  # here: most runs try no layout

    with _scratch(world, runs) as folder:

        def trial(option: LayoutChoice) -> LayoutTimes:
            there = folder / option.mesh
            place = by_first(world, _free_place)
            why = _tried(world, recipe, option, place, there, cache, min(_LIMIT_S, limit_s / len(options)))
            whys = [f"rank {rank}: {one}" for rank, one in enumerate(world.gather(why)) if one]
            found = [] if whys else by_first(world, partial(_timed, there))["steps_s"]
            return LayoutTimes(tuple(found)) if found else LayoutTimes(failure=whys[0] if whys else "it trained too few steps")

        return LayoutSearch(options, trial, say).chosen()


@contextmanager
def _scratch(world: World, runs: Path) -> Iterator[Path]:
    """A temporary folder next to the runs, where all processes can see it."""

    def make() -> dict[str, Any]:
        runs.mkdir(parents=True, exist_ok=True)
        return {"path": tempfile.mkdtemp(prefix=".layouts-", dir=runs.absolute())}

    folder = Path(by_first(world, make)["path"])
    try:
        yield folder
    finally:
        if world.is_first:
            shutil.rmtree(folder, ignore_errors=True)


def _free_place() -> dict[str, Any]:
    place = own_place()
    assert place is not None
    with socket.socket() as found:
        found.bind(("", 0))
        return {"address": place.address, "port": found.getsockname()[1]}


def _tried(
    world: World, recipe: Recipe, option: LayoutChoice, place: Mapping[str, Any], runs: Path, cache: Path | None, limit_s: float
) -> str:
    """Why the trial failed; empty if it did not."""
    environment = environment_beside(world, place["address"], place["port"])
    if cache is not None:
        environment[_CACHE] = str(cache)
    with Child([sys.executable, "-m", "flatout", *_arguments(recipe, option, runs)], environment=environment) as child:
        code = child.wait(limit_s)
        if code == 0 or (code == -signal.SIGABRT and _is_finished(runs)):  # torch's threads may abort a finished process
            return ""
        return f"it {child.how_it_ended()}"


def _is_finished(runs: Path) -> bool:
    return any(event["kind"] == "finished" for folder in all_runs(runs) for event in read_events(folder.events_path))


def _arguments(recipe: Recipe, option: LayoutChoice, runs: Path) -> list[str]:
    assert recipe.source is not None
    overrides, pins = recipe.given
    often = {"log_every": 1, "checkpoint_every": "end"}
    wanted = {name: value for name, value in option.settings.items() if name not in recipe.pins}  # as in the run
    settings = {**wanted, **pins, **often, "mesh": option.mesh}
    steps = _WARM + min(_MOST, max(_LEAST, round(_MEASURE_S / (option.step_s or _MEASURE_S))))
    asked = ["run", str(recipe.source.resolve()), *overrides, f"budget={steps} steps", "evaluate=null"]
    if recipe.searches_rate:
        asked.append(f"lr={PROVISIONAL_LR}")  # these runs are only timed
    for name, value in settings.items():
        asked += ["--set", f"{name}={'on' if value is True else 'off' if value is False else value}"]
    return [*asked, "--runs", str(runs), "--planning", "off", "--fresh", "--quiet"]


def _timed(runs: Path) -> dict[str, Any]:
    (folder,) = all_runs(runs)
    at = [event["t"] for event in read_events(folder.events_path) if event["kind"] == "step"]
    took = [after - before for before, after in pairwise(at[_WARM:])]
    return {"steps_s": took}
