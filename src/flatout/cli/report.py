"""report: one HTML page about a run, or about several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.output import check_page_path


def report(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="A run's name, its folder, or `last`; or several.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write. Default: RUN-report.html here.", show_default=False)
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
) -> None:
    """Write one HTML page that shows how a run was trained: result, curves, plan, trials, where the time went.

    Several runs are drawn on top of each other, with what differs between them. The file needs no network and no server.

    Example: flatout report last

    Example: flatout report digits-1 digits-2 --out lr.html
    """
    from flatout.reporting.verb import headline_of, page_of, page_path, read_stories, write

    if out is not None:
        check_page_path(out, "--out")
    stories = read_stories(names, runs)
    path, page = page_path(stories, out), page_of(stories)
    write(path, page)
    print(f"wrote {path} ({len(page.encode()) / 1000:.0f} kB): {headline_of(stories)}")
