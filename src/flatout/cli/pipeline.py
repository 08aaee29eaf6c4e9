"""pipeline: one file from raw data to a checked model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.places import cache_folder, price_per_hour

if TYPE_CHECKING:
    from flatout.pipelines.stages.outcomes import PipelineOutcome


def pipeline(
    file: Annotated[Path, typer.Argument(help="The pipeline file.")] = Path("pipeline.yaml"),
    stages: Annotated[
        list[str] | None, typer.Argument(help="Only these stages, and what they wait for.", show_default=False)
    ] = None,
    dry: Annotated[bool, typer.Option("--dry", help="Say what would run, why, and what it would take; run nothing.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: run again when an input changes, or when a stage's `when` is due.")
    ] = False,
    fresh: Annotated[
        list[str] | None,
        typer.Option("--fresh", help="Run this stage although nothing changed. May be repeated.", show_default=False),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept", help="Take the data of this stage as the version that later ones are compared with.", show_default=False
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with what each stage gave and took.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
) -> None:
    """Run the stages of a pipeline that changed, in order. The same command goes on after a kill.

    Exit code 0: all is done, 1: a stage failed or a gate says fail, 3: a gate has no verdict.

    Example: flatout pipeline pipeline.yaml --dry
    """
    from flatout.base.errors import UsageError
    from flatout.base.tree import to_data, to_text
    from flatout.pipelines.stages.verb import open_pipeline, run_pipeline

    if dry and watch:
        raise UsageError("--dry says what would run now, --watch goes on running: give one of them")
    if html is not None:
        if dry or watch:
            why = "--dry runs nothing" if dry else "--watch does not end"
            raise UsageError(f"--html shows what a pipeline did, and {why}: leave one of them out")
        check_page_path(html)
    found = open_pipeline(file, stages or (), cache_folder())
    if dry:
        from flatout.pipelines.stages.dry import dry_run
        from flatout.pipelines.stages.dry_view import dry_doc

        price = found.asked.keys.price_per_hour or price_per_hour()
        doc = dry_doc(dry_run(found, cache=cache_folder(), environment=os.environ, fresh=fresh or ()), price)
        print_json(to_data(doc)) if as_json else print(to_text(doc))
        return
    say = (lambda line: None) if quiet else _say
    if watch:
        from flatout.pipelines.stages.watching import watch_pipeline

        watch_pipeline(
            file.absolute(), lambda: open_pipeline(file, stages or ()), cache=cache_folder(), environment=os.environ, say=say,
            told=lambda one: _show(one, as_json),
        )  # fmt: skip
        return
    outcome = run_pipeline(found, cache=cache_folder(), environment=os.environ, fresh=fresh or (), accept=accept or (), say=say)
    if html is not None:
        from flatout.base.html import to_html
        from flatout.pipelines.stages.page import outcome_page

        write_page(html, to_html(outcome_page(outcome), f"Pipeline {file}"))
    _show(outcome, as_json)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def _show(outcome: PipelineOutcome, as_json: bool) -> None:
    from flatout.base.tree import to_data, to_text
    from flatout.pipelines.stages.views import outcome_doc

    doc = outcome_doc(outcome)
    print_json(to_data(doc)) if as_json else print(to_text(doc), flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
