"""report: one HTML page about a run, or about several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.output import check_page_path
from flatout.cli.places import cache_folder

if TYPE_CHECKING:
    from flatout.base.tree import Node


def report(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="A run's name, its folder, or `last`; or several.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write. Default: RUN-report.html here.", show_default=False)
    ] = None,
    evaluate: Annotated[
        bool,
        typer.Option("--evaluate", help="Also show how well the model does on held-out rows. Reads the run's data again."),
    ] = False,
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
) -> None:
    """Write one HTML page that shows how a run was trained: result, curves, plan, trials, where the time went.

    Several runs are drawn on top of each other, with what differs between them. The file needs no network and no server.

    Example: flatout report last

    Example: flatout report last --evaluate

    Example: flatout report digits-1 digits-2 --out lr.html
    """
    from flatout.reporting.verb import (
        check_can_evaluate,
        headline_of,
        judged_of,
        page_of,
        page_path,
        read_stories,
        write,
    )
    from flatout.runs.record import Run

    if out is not None:
        check_page_path(out, "--out")
    stories = read_stories(names, runs)
    judged: Sequence[Node] = ()
    if evaluate:
        check_can_evaluate(stories)
        judged = judged_of(Run(stories[0].folder), cache_folder())
    path, page = page_path(stories, out), page_of(stories, judged)
    write(path, page)
    print(f"wrote {path} ({len(page.encode()) / 1000:.0f} kB): {headline_of(stories)}")
