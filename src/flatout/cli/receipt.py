"""receipt: what was tried for a run or for a shrunk package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.output import check_page_path, print_json
from flatout.cli.packages import opened
from flatout.cli.shrink import show_receipt


def receipt(
    model: Annotated[
        str,
        typer.Argument(help="The name of a run, its folder, or `last`; or a package that shrink made.", show_default=False),
    ],
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with a package's receipt to this file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what was tried: settings before a run, or changes of a shrunk package. Each with measurements, proof and why.

    Example: flatout receipt last
    """
    from flatout.base.tree import to_data, to_text
    from flatout.plan.receipt_view import receipt_doc
    from flatout.runs import verbs

    if html is not None:
        check_page_path(html)
    if (package := opened(Path(model))) is not None:
        show_receipt(package, as_json, html)
        return
    if html is not None:
        raise UsageError("--html is for packages: flatout explain RUN --html FILE writes the page of a run")
    found = verbs.load(model, runs=runs)
    if found.receipt is None:
        raise UsageError(f"{found.name} has no receipt: no settings were tried (--planning off, or a run of unknown length)")
    doc = receipt_doc(found.name, found.receipt)
    print_json(to_data(doc)) if as_json else print(to_text(doc))
