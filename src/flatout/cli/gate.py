"""gate: is a new model as good as the old one? For CI jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.packages import package_folder
from flatout.cli.places import cache_folder

_NO_VERDICT = 3


def gate(
    new: Annotated[str, typer.Argument(help="The new model: a package or a run.", show_default=False)],
    data: Annotated[
        Path, typer.Option("--data", help="Labelled rows that neither model was trained on.", show_default=False)
    ],
    against: Annotated[
        str | None, typer.Option("--against", help="The old model: a package or a run.", show_default=False)
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin", help="What may be lost at most: points of accuracy or AUC (default 0.5), loss (0.01), percent of an "
            "error (0.5).", show_default=False,
        ),
    ] = None,
    slices: Annotated[
        str, typer.Option("--slice", help="Columns of the data, with commas: each of their values is compared too.")
    ] = "",
    floor: Annotated[
        list[str] | None,
        typer.Option("--floor", help="What the new model has to reach by itself, such as accuracy=0.9.", show_default=False),
    ] = None,
    look: Annotated[int, typer.Option("--look", help="How often these rows were used by now, this time included.")] = 1,
    slower: Annotated[str, typer.Option("--slower", help="How much slower a call may be, or any.")] = "25%",
    larger: Annotated[str, typer.Option("--larger", help="How much larger the model may be, or any.")] = "25%",
    batch: Annotated[int, typer.Option("--batch", help="Rows in a call that is timed.")] = 1,
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write a table for a pull request to this file.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
) -> None:  # fmt: skip
    """Compare a new model with the old one on the same rows. Exit code 0: as good, 1: worse, 3: these rows do not tell.

    Example: flatout gate last --against production/ --data test.parquet --slice job --markdown gate.md
    """
    from flatout.base.html import to_html
    from flatout.base.tree import to_data, to_text
    from flatout.packaging.package import open_package
    from flatout.pipelines.gate.checks import FAIL, NO_VERDICT
    from flatout.pipelines.gate.verb import GateLimits
    from flatout.pipelines.gate.verb import gate as compare_models
    from flatout.pipelines.gate.views import gate_doc
    from flatout.pipelines.gate.views import markdown as as_markdown

    if html is not None:
        check_page_path(html)
    if markdown is not None:
        check_page_path(markdown, "--markdown")
    limits = GateLimits(_share("--slower", slower), _share("--larger", larger), batch)
    floors = dict(_floor(one) for one in floor or [])
    if batch < 1:
        raise UsageError(f"--batch is a number of rows, 1 or more, got {batch}")
    say = (lambda line: None) if quiet else _say
    newer = open_package(package_folder(new, runs, say)[1])
    older = None if against is None else open_package(package_folder(against, runs, say)[1])
    result = compare_models(
        newer, data, against=older, margin=margin, slices=[one.strip() for one in slices.split(",") if one.strip()],
        floors=floors, look=look, limits=limits, cache=cache_folder(), say=say,
    )  # fmt: skip
    doc = gate_doc(result)
    print_json(to_data(doc)) if as_json else print(to_text(doc))
    if markdown is not None:
        write_page(markdown, as_markdown(result))
        _say(f"wrote {markdown}")
    if html is not None:
        write_page(html, to_html(doc, "Gate"))
        _say(f"wrote {html}")
    if result.verdict in (FAIL, NO_VERDICT):
        raise typer.Exit(1 if result.verdict == FAIL else _NO_VERDICT)


def _share(option: str, text: str) -> float | None:
    if text.strip() == "any":
        return None
    try:
        found = float(text.removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not text.endswith("%") or not 0 <= found < 100:
        raise UsageError(f"{option} is a percentage such as 25%, or any; got {text!r}")
    return found


def _floor(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise UsageError(f"--floor takes a metric and a value, such as accuracy=0.9; got {text!r}") from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
