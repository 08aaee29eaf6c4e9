"""find-lr, overfit and summary: questions about a recipe that a short training answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.places import cache_folder
from flatout.cli.training import (
    Json,
    Offs,
    Overrides,
    RecipeOrRun,
    RecipePath,
    Runs,
    Sets,
    load_run,
    names_a_run,
    read_asked,
)

_PICTURES = (".svg", ".png", ".html")


def find_lr(
    recipe: RecipePath,
    overrides: Overrides = None,
    limit: Annotated[str, typer.Option("--limit", help="About how long to search, such as '2 min'.")] = "30 s",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write the curve to this .svg, .png or .html file.", show_default=False)
    ] = None,
    sets: Sets = None,
    offs: Offs = None,
    as_json: Json = False,
) -> None:
    """Find a learning rate for a recipe by short trainings of copies of its model. Prints the curve, the rate and the reason.

    With lr: auto in the recipe a run does this by itself. Exit code 1: no rate is stable.

    Example: flatout find-lr mine.yaml --plot curve.svg
    """
    from flatout.base.html import to_html
    from flatout.base.tree import to_data, to_text
    from flatout.runs.rates.found import draw, found_doc
    from flatout.runs.rates.verb import find_lr as search

    if plot is not None:
        if plot.suffix not in _PICTURES:
            raise UsageError(f"--plot writes .svg, .png or .html, got {plot.name}")
        check_page_path(plot, "--plot")
    asked = read_asked(recipe, [*(overrides or []), "lr=auto"], sets, offs)  # works without lr in the recipe
    found = search(asked, limit=limit, cache=cache_folder(), say=_say)
    doc = found_doc(found)
    print_json(to_data(doc)) if as_json else print(to_text(doc))
    if plot is not None and len(found.rates) > 1:
        if plot.suffix == ".png":
            from flatout.runs.plotting import plot_rates

            plot_rates(found).savefig(plot)
        else:
            write_page(plot, draw(found) if plot.suffix == ".svg" else to_html(doc, f"Learning rate of {recipe.name}"))
        _say(f"wrote {plot}")
    if found.lr is None:
        raise typer.Exit(1)
    if not as_json:
        print(f"\nTo use it: flatout run {recipe} lr={found.lr:g}, or lr: auto in the recipe, which searches once per run.")


def overfit(
    recipe: RecipePath,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Most steps at each learning rate.")] = 300,
    sets: Sets = None,
    offs: Offs = None,
    as_json: Json = False,
) -> None:
    """Train a copy of a recipe's model on one batch until it knows it by heart. Says which part can't learn.

    Without dropout, augmentation and weight decay. Exit code 1: the batch was not learned.

    Example: flatout overfit mine.yaml
    """
    from flatout.base.tree import to_data, to_text
    from flatout.runs.one_batch.overfit import overfit as do_overfit
    from flatout.runs.one_batch.view import one_batch_doc

    found = do_overfit(read_asked(recipe, overrides, sets, offs), steps=steps, cache=cache_folder())
    doc = one_batch_doc(found)
    print_json(to_data(doc)) if as_json else print(to_text(doc))
    if not found.learned:
        raise typer.Exit(1)


def summary(
    recipe: RecipeOrRun,
    overrides: Overrides = None,
    depth: Annotated[int, typer.Option("--depth", min=0, help="How deep to show layers inside of layers.")] = 2,
    times: Annotated[
        bool | None, typer.Option("--time/--no-time", help="Time the layers. Default: if a step takes less than a second.")
    ] = None,
    sets: Sets = None,
    offs: Offs = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show the layers of a recipe's or a run's model: shapes, parameters, FLOPs, memory, share of a step's time.

    Example: flatout summary mine.yaml
    """
    from flatout.base.tree import to_data, to_text
    from flatout.runs.layers.summary import summary as summarize
    from flatout.runs.layers.view import summary_doc

    if names_a_run(recipe):
        if given := [*(overrides or []), *(sets or []), *(offs or [])]:
            raise UsageError(f"{', '.join(given)}: a run has its own recipe; to change it, give a recipe file")
        asked = load_run(str(recipe), runs).recipe
    else:
        asked = read_asked(recipe, overrides, sets, offs)
    doc = summary_doc(summarize(asked, measure=times, cache=cache_folder()), depth)
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
