"""shrink: a smaller and faster package, if it is as accurate; and its receipt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import ModelError, Stopped, UsageError
from flatout.cli.output import check_page_path, print_json, write_page
from flatout.cli.packages import package_folder
from flatout.cli.places import cache_folder

if TYPE_CHECKING:
    from flatout.base.tree import Doc
    from flatout.packaging.package import Package


def shrink(
    model: Annotated[
        str, typer.Argument(help="A package or a run: a folder, a run's name, or `last`.", show_default=False)
    ],
    goal: Annotated[
        str | None,
        typer.Option("--goal", help="'p99 5 ms', 'size 4x' or 'speed 2x'. Default: as fast as it gets.", show_default=False),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin", help="What may be lost at most: points of accuracy or AUC (default 0.5), loss (0.01), percent of an "
            "error (0.5).", show_default=False,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", help="Rows in a call, as they are served: 64, or 1,64. Default: 1, and with --slo or a goal of latency "
            "also what that permits.", show_default=False,
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo", help="The latency goal that it will be served with, such as 'p99 50 ms': says which --batch counts.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Labelled rows to judge by, instead of the run's own.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder of the new package.")] = Path("shrunk"),
    within: Annotated[str, typer.Option("--within", help="No new try starts after this time.")] = "10 min",
    training: Annotated[
        str | None,
        typer.Option(
            "--training", help="How long pruned and narrower models may be trained, together; off: not at all. Default: half "
            "of --within.", show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="That serves it: cpu or cuda.")] = "cpu",
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the receipt to this file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
) -> None:  # fmt: skip
    """Make a model smaller and faster here. A change is kept only if it is faster and proven as accurate on held-out rows.

    Example: flatout shrink last --goal 'size 4x' --out small/
    """
    from flatout.packaging.folder import check_is_new
    from flatout.packaging.package import open_package
    from flatout.shrinking.making import make_smaller
    from flatout.shrinking.request import ShrinkRequest

    if html is not None:
        check_page_path(html)
    check_is_new(out)
    sizes = None if batch is None else _sizes(batch)
    request = ShrinkRequest.read(goal, margin, sizes, data, within, training, device, slo)
    _, folder = package_folder(model, runs, _say)
    say = (lambda line: None) if quiet else _say
    made = make_smaller(open_package(folder), out, request, cache=cache_folder(), say=say)
    show_receipt(made.package, as_json, html)
    if made.is_interrupted:
        raise Stopped("SIGINT", 130, f"interrupted: {out} has what was proven so far")
    if not made.goal_met:
        raise ModelError(f"the goal is not met; {out} has the nearest package that is as accurate")


def show_receipt(package: Package, as_json: bool, html: Path | None) -> None:
    from flatout.base.html import to_html
    from flatout.base.tree import to_data, to_text

    doc = receipt_of(package)
    print_json(to_data(doc)) if as_json else print(to_text(doc))
    if html is not None:
        write_page(html, to_html(doc, f"Receipt of {package.path}"))
        _say(f"wrote {html}")


def receipt_of(package: Package) -> Doc:
    from flatout.shrinking.views.receipt import has_receipt, shrink_doc

    if not has_receipt(package):
        raise UsageError(
            f"{package.path} has no receipt: it was exported, not shrunk. flatout receipt RUN shows that of its run"
        )
    return shrink_doc(package)


def _sizes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"--batch is a number of rows, or several with commas, such as 1,64; got {text!r}")
    return list(dict.fromkeys(int(word) for word in words))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
