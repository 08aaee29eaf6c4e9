"""receipt: what was tried for a run or for a shrunk package, and the verdict on a canary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.packages import opened
from flatout.cli.shrink import show_receipt


def receipt(
    model: Annotated[
        str,
        typer.Argument(
            help="The name of a run, its folder, or `last`; a package that shrink made; or the state of a canary.",
            show_default=False,
        ),
    ],
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with the receipt of a package or canary to this file.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what was tried: settings before a run, changes of a shrunk package, a canary. With measurements, proof and why.

    Example: flatout receipt last
    """
    from flatout.base.tree import to_data, to_text
    from flatout.plan.receipt_view import receipt_doc
    from flatout.runs import verbs
    from flatout.serving.canary.rollout_view import state_files

    if html is not None:
        check_page_path(html)
    if (package := opened(Path(model))) is not None:
        show_receipt(package, as_json, html)
        return
    if (states := state_files(Path(model))) != []:
        _show_rollout(states, as_json, html)
        return
    if html is not None:
        raise UsageError("--html is for packages and canaries: flatout explain RUN --html FILE writes the page of a run")
    found = verbs.load(model, runs=runs)
    if found.receipt is None:
        raise UsageError(f"{found.name} has no receipt: no settings were tried (--planning off, or a run of unknown length)")
    doc = receipt_doc(found.name, found.receipt)
    print_json(to_data(doc)) if as_json else print(to_text(doc))


def _show_rollout(states: list[Path], as_json: bool, html: Path | None) -> None:
    from flatout.base.html import to_html
    from flatout.base.tree import to_data, to_text
    from flatout.serving.canary.rollout_view import rollout_doc

    if len(states) > 1:
        raise UsageError(f"there are several canaries: give one of {', '.join(map(str, states))}")
    doc = rollout_doc(states[0])
    print_json(to_data(doc)) if as_json else print(to_text(doc))
    if html is not None:
        write_page(html, to_html(doc, f"Receipt of {states[0]}"))
