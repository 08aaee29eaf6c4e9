"""new and data: write a recipe for files, and show a recipe's data and how fast it can be read."""

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
        list[str], typer.Argument(help="Files or a folder: a table, images, text, tokens or arrays.", metavar="PATH...")
    ],
    label: Annotated[str | None, typer.Option("--label", help="The column to predict.", show_default=False)] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the recipe.")] = Path("recipe.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a recipe for data files. Inspects the files; comments in the recipe say what you may change."""
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out must be a .yaml file, got {out.name}")
    if not out.resolve().parent.is_dir():
        raise UsageError(f"--out: folder not found: {out.resolve().parent}")
    if out.exists() and not force:
        raise UsageError(f"{out} exists already: choose another name with --out, or overwrite it with --force")

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
    print(f"\nWrote {out}. Check it and edit it as needed, then:")
    print(f"  flatout data {recipe}    shows the data and how fast it can be read")
    print(f"  flatout run {recipe}     trains: {found.training.budget}, {found.training.batch} rows per step")


def data(
    recipe: RecipePath,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long to measure.")] = 5.0,
    sets: Sets = None,
    offs: Offs = None,
    as_json: Json = False,
) -> None:
    """Show a recipe's data and how fast it can be read. Also where it would be kept, and what would make it faster."""
    from flatout.base.tree import to_data, to_text
    from flatout.explore.survey.survey import survey
    from flatout.explore.survey.view import doc

    found = doc(survey(read_asked(recipe, overrides, sets, offs), seconds=seconds, cache=cache_folder()))
    print_json(to_data(found)) if as_json else print(to_text(found))
