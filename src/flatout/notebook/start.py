"""`fo.run`: trains a recipe, or data with whatever else is known, and shows its progress in a terminal or a notebook."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.events import Event, Observer
from flatout.notebook.own_functions import OwnFunction, OwnFunctions
from flatout.notebook.speaking import speaking
from flatout.plan.trials.reports import CTRL_C
from flatout.recipe.load import read_recipe
from flatout.recipe.schema import Recipe
from flatout.recipe.slips import answer_to
from flatout.runs import train
from flatout.runs.record import Run
from flatout.runs.train import PLANNING
from flatout.runs.trained import CACHE
from flatout.tracking.asked import parse_tracks
from flatout.tracking.start import tracking
from flatout.world.joining import is_first

_STOPPED = f"{CTRL_C}stopped while planning: no step was trained and there is no run to resume. The same call starts again."


def run(
    recipe: Any = None,
    *others: Any,
    data: Any = None,
    label: str | None = None,
    runs: Path | str = "runs",
    fresh: bool = False,
    observers: Sequence[Observer] = (),
    cache: Path | str | None = CACHE,
    planning: str = PLANNING,
    quiet: bool = False,
    track: str | Sequence[str] = (),
    on: Mapping[str, OwnFunction] | None = None,
    **keys: Any,
) -> Run:
    """Plan and train. An unfinished run of the same recipe, code and data is resumed, unless `fresh`.

    `recipe` is a `fo.Recipe` or a recipe file. Or give `data` and any keys of a recipe: fo.run(data=df, label="survived"),
    fo.run(data=(x, y), model=net, lr=1e-3, budget="5 epochs"). Keys that are missing are drafted as `flatout new` does; the
    drafted recipe is shown and kept in the run's folder. `label`, `holdout`, `validation`, `test` and `classes` belong to the
    data. Data is a DataFrame, an Arrow table, (x, y), columns by name, a torch Dataset, a DataLoader or a path.

    Started by torchrun, Slurm, Kubeflow or Ray Train, the processes train together. `planning` is the time limit for trials of
    settings, such as "2 min"; "off": no trials. A terminal gets a progress line, a notebook a live bar and curve;
    with `quiet` neither does.

    `track` sends what the run logs to trackers, each in a process of its own: "tensorboard", "mlflow=http://host:5000",
    "wandb", "csv", "jsonl", or several in a list. `on` has functions of yours by the event they wait for,
    on={"evaluation": f}: training waits while f(event, run) works; what f raises is a warning.
    """
    if others:
        raise UsageError("fo.run takes one thing without a name: fo.run(data=(x, y), model=net), or fo.run(data=df, label='y')")
    asked = _recipe(recipe, data, {**keys, **({} if label is None else {"label": label})})
    begun: list[str] = []

    def note(event: Event) -> None:
        if event["kind"] == "planned":
            begun.append(event["run"])

    asked_for = (asked.track, (track,) if isinstance(track, str) else track)
    tracks = parse_tracks(one for written in asked_for for one in written) if is_first() else ()
    own = (OwnFunctions(on, Path(runs)),) if on and is_first() else ()
    with speaking(quiet) as views, tracking(tracks, Path(runs), _warn) as trackers:
        told = (*views, note, *trackers, *own, *observers)
        try:
            return train.run(asked, runs=runs, fresh=fresh, observers=told, cache=cache, planning=planning)
        except KeyboardInterrupt:
            if not begun:
                for view in views:
                    view({"kind": "planning", "t": 0.0, "line": _STOPPED})
            raise


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=2)


def _recipe(recipe: Any, data: Any, keys: dict[str, Any]) -> Recipe:
    if recipe is not None and data is not None:
        raise UsageError("got both a recipe and data: give the recipe alone, or data and keys of a recipe")
    if isinstance(recipe, str | Path) and Path(recipe).suffix in (".yaml", ".yml", ".py"):
        recipe = read_recipe(Path(recipe))
    if isinstance(recipe, Recipe):
        if keys:
            raise UsageError(
                f"{', '.join(keys)}: a recipe holds all of its keys: fo.Recipe(..., {next(iter(keys))}=...), or give data "
                "instead of a recipe"
            )
        return recipe
    given = data if recipe is None else recipe
    if given is None:
        stray = next((f"{name}: {answer}; " for name in keys if (answer := answer_to(name, ()))), "")
        raise UsageError(f'{stray}fo.run needs a recipe or data: fo.run(fo.Recipe(...)), or fo.run(data=df, label="survived")')
    from flatout.notebook.drafted import recipe_of  # here: a whole recipe starts sooner without it

    return recipe_of(given, keys)
