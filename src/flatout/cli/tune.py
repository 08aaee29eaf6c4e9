"""tune: search over a recipe's keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import Stopped, UsageError
from flatout.cli.began import BEGAN_S
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.places import cache_folder
from flatout.cli.training import Json, Offs, On, RayWorkers, RecipePath, Runs, Sets, read_asked

if TYPE_CHECKING:
    from flatout.base.events import Observer
    from flatout.tuning.space.space import Space


def tune(
    recipe: RecipePath,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to search: lr=1e-4..1e-1, model.hidden=64|128, weight_decay=0,1e-5..1e-1. key=value changes the recipe.",
            show_default=False,
        ),
    ] = None,
    space: Annotated[
        Path | None, typer.Option("--space", help="A YAML file with the space, instead of words.", show_default=False)
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Of the whole study: '10 min' (the default), '5 USD', '200 Wh'.", show_default=False),
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", help="The most trials.", show_default=False)] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="What trials are compared by. Default: the recipe's.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the search; the recipe has its own.")] = 0,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="cpu, cuda (all GPUs), cuda:0,cuda:1; cpu,cpu: two processes. Default: all that the recipe allows.",
            show_default=False,
        ),
    ] = None,
    runs: Runs = Path("runs"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new study instead of going on with an unfinished one.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the study to this file.", show_default=False)
    ] = None,
    sets: Sets = None,
    offs: Offs = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    on: On = None,
    workers: RayWorkers = "1",
) -> None:
    """Search for better values of a recipe's keys, and judge the winner on seeds and rows that did not choose it.

    Without a space: the learning rate, weight decay, warm-up and schedule. The same command goes on with an unfinished study; a
    larger budget extends a finished one. Under torchrun the trials are spread over all processes.

    Example: flatout tune mine.yaml lr=1e-4..1e-1 --budget '10 min'
    """
    from flatout.tuning.start import StudyStart

    if html is not None:
        check_page_path(html)
    seats = None
    with StudyStart(BEGAN_S.get()) as start:
        if on is None and BEGAN_S.get() is not None:
            from flatout.cli.study_worker import forked

            start.template.fork_here(forked)  # first: nothing was computed yet
        asked_space, overrides = _space(words or [], space)
        if on is not None:
            from flatout.cli.elsewhere import handed_in, seats_on_ray

            if device is not None:
                raise UsageError("--device names devices of this machine: with --on ray give --workers, or --set device=cpu")
            options = {"--space": space, "--budget": budget, "--trials": trials, "--metric": metric, "--seed": seed}
            pairs = [(name, value) for name, value in options.items() if value is not None]
            pairs += [*(("--set", pin) for pin in sets or []), *(("--off", off) for off in offs or [])]
            given = [*(words or []), *(str(word) for pair in pairs for word in pair)]
            given += [*(["--fresh"] if fresh else []), *(["--json"] if as_json else []), *(["--quiet"] if quiet else [])]
            if (code := handed_in(on, recipe, given, workers, runs, "tune")) is not None:
                raise typer.Exit(code)
            seats = seats_on_ray(read_asked(recipe, overrides, sets, offs), workers, _say)

        from flatout.cli.ahead import StudyEndAhead
        from flatout.cli.study_progress import study_progress
        from flatout.tuning.verb import tune as search
        from flatout.world.joining import is_first

        asked = read_asked(recipe, overrides, sets, offs)
        speaks = is_first()
        ahead = StudyEndAhead()
        with study_progress(quiet or not speaks) as observers:
            told: tuple[Observer, ...] = (*observers, ahead)
            study = search(
                asked, asked_space, budget=budget, trials=trials, metric=metric, seed=seed, device=device, runs=runs,
                fresh=fresh, observers=told, cache=cache_folder(), say=_say, seats=seats, start=start,
            )  # fmt: skip
    if not speaks:
        return

    from flatout.base.tree import to_data, to_text
    from flatout.tuning.views.doc import study_doc

    doc = study_doc(study.folder, ahead.importance)
    print_json(to_data(doc)) if as_json else print(to_text(doc))
    if html is not None:
        from flatout.base.html import to_html

        write_page(html, to_html(doc, f"Study {study.name}"))
        _say(f"wrote {html}")
    if study.result["stopped"]:
        raise Stopped("SIGINT", 130, f"interrupted: {study.name} was ended early. The same command goes on with the search.")


def _space(words: list[str], file: Path | None) -> tuple[Space | None, list[str]]:
    from flatout.tuning.space.reading import parse_words, read_space

    space, overrides = parse_words(words)
    if file is None:
        return space, overrides
    if space is not None:
        raise UsageError(f"give the space in {file} or as words, not both: {', '.join(one.key for one in space.parameters)}")
    return read_space(file), overrides


def _say(line: str) -> None:
    print(f"note: {line}", file=sys.stderr, flush=True)
