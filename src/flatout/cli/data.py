"""new and data: a recipe for files that have none, and what the data of a recipe is and how fast it can come."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from flatout.base.errors import StoreError, UsageError
from flatout.cli.output import print_json
from flatout.cli.places import cache_folder
from flatout.cli.training import Json, Offs, Overrides, RecipePath, Sets, read_asked

_WIDTH = 100


def new(
    paths: Annotated[
        list[str], typer.Argument(help="Files or a folder: a table, images, text, tokens, arrays.", metavar="PATH...")
    ],
    label: Annotated[str | None, typer.Option("--label", help="The column to learn.", show_default=False)] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the recipe.")] = Path("recipe.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Look at files and write a recipe that runs, with comments that say what may be changed."""
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out is a .yaml file, got {out.name}")
    if not out.resolve().parent.is_dir():
        raise UsageError(f"--out: there is no folder {out.resolve().parent}")
    if out.exists() and not force:
        raise UsageError(f"{out} is there already: choose another name with --out, or write over it with --force")

    from flatout.explore.drafting.new import draft

    found = draft(paths, label, out.resolve().parent)
    command = ["flatout", "new", *paths, *(["--label", label] if label is not None else [])]
    try:
        out.write_text(found.text(command, out.name), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {out}: {error.strerror}") from error
    print(found.headline)
    width = max((len(name) for name, _ in found.facts), default=0) + 2
    for name, words in found.facts:
        print(textwrap.fill(words, _WIDTH, initial_indent=f"  {name:{width}}", subsequent_indent=" " * (width + 2)))
    recipe = shlex.quote(str(out))
    print(f"\n{out} is written. Read it, change what you know better, then:")
    print(f"  flatout data {recipe}    what the data is, and how fast it comes")
    print(f"  flatout run {recipe}     trains it: {found.training.budget} of {found.training.batch} rows a step")


def data(
    recipe: RecipePath,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long to measure.")] = 5.0,
    sets: Sets = None,
    offs: Offs = None,
    as_json: Json = False,
) -> None:
    """Say what a recipe's data is, where it would live, how fast each stage of it is, and what would make it faster."""
    from flatout.base.tree import to_data, to_text
    from flatout.explore.survey.survey import survey
    from flatout.explore.survey.view import doc

    found = doc(survey(read_asked(recipe, overrides, sets, offs), seconds=seconds, cache=cache_folder()))
    print_json(to_data(found)) if as_json else print(to_text(found))
