"""new and data: write a recipe for files, and show a recipe's data and how fast it can be read."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import StoreError, UsageError
from flatout.cli.output import print_json
from flatout.cli.places import cache_folder
from flatout.cli.training import Json, Offs, Overrides, RecipePath, Sets, read_asked

if TYPE_CHECKING:
    from flatout.explore.drafting.draft import Draft

_WIDTH = 100
_RECIPES = (".yaml", ".yml", ".py")

GuardSwitch = Annotated[
    str | None, typer.Option("--guard", help="Switch checks of the data off: `off`, or `leak=off,id=off`.", show_default=False)
]


def new(
    paths: Annotated[
        list[str], typer.Argument(help="Files or a folder: a table, images, text, tokens or arrays.", metavar="PATH...")
    ],
    label: Annotated[str | None, typer.Option("--label", help="The column to predict.", show_default=False)] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the recipe.")] = Path("recipe.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    guard: GuardSwitch = None,
) -> None:
    """Write a recipe for data files. Inspects the files; comments in the recipe say what you may change.

    Example: flatout new bank.csv.gz --label y
    """
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out must be a .yaml file, got {out.name}")
    if not out.resolve().parent.is_dir():
        raise UsageError(f"--out: folder not found: {out.resolve().parent}")
    if out.exists() and not force:
        raise UsageError(f"{out} exists already: choose another name with --out, or overwrite it with --force")

    from flatout.explore.drafting.new import draft

    found = draft(paths, label, out.resolve().parent, _guard(guard))
    options = [*(["--label", label] if label is not None else []), *(["--guard", guard] if guard is not None else [])]
    command = ["flatout", "new", *paths, *options]
    try:
        out.write_text(found.text(command, out.name), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {out}: {error.strerror}") from error
    _print_facts(found)
    recipe = shlex.quote(str(out))
    print(f"\nWrote {out}. Check it and edit it as needed, then:")
    print(f"  flatout data {recipe}    shows the data and how fast it can be read")
    print(f"  flatout run {recipe}     trains: {found.training.budget}, {found.training.batch} rows per step")


def _print_facts(found: Draft) -> None:
    print(found.headline)
    width = max((len(name) for name, _ in found.facts), default=0) + 2
    for name, words in found.facts:
        print(textwrap.fill(words, _WIDTH, initial_indent=f"  {name:{width}}", subsequent_indent=" " * (width + 2)))


def _guard(written: str | None) -> bool | dict[str, bool] | None:
    """False for "off", {"leak": False} for "leak=off"; None if nothing is switched off."""
    if written is None:
        return None
    from flatout.data.option_checks import guards

    switches = {"on": True, "off": False}
    pairs = [item.partition("=") for item in written.split(",")]
    asked = switches.get(written, {name.strip(): switches.get(value.strip()) for name, _, value in pairs})
    if wrong := guards(asked):
        raise UsageError(f"--guard: {wrong.replace('{leak: off}', 'leak=off')}, got {written!r}")
    return None if asked is True else asked  # type: ignore[return-value]  # checked by `guards`


def data(
    recipe: RecipePath,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long to measure.")] = 5.0,
    sets: Sets = None,
    offs: Offs = None,
    label: Annotated[
        str | None, typer.Option("--label", help="For a data file: the column to predict.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a recipe's data and how fast it can be read. Also where it would be kept, and what would make it faster.

    Example: flatout data mine.yaml
    """
    if recipe.suffix not in _RECIPES and recipe.exists():
        _data_file(recipe, label, as_json)
        return
    if label is not None:
        raise UsageError(f"--label is for a data file; the label of {recipe} is in the recipe")
    from flatout.base.tree import to_data, to_text
    from flatout.explore.survey.survey import survey
    from flatout.explore.survey.view import doc

    found = doc(survey(read_asked(recipe, overrides, sets, offs), seconds=seconds, cache=cache_folder()))
    print_json(to_data(found)) if as_json else print(to_text(found))


def _data_file(path: Path, label: str | None, as_json: bool) -> None:
    """What `flatout new` would find; nothing is written."""
    from dataclasses import asdict

    from flatout.explore.drafting.new import draft

    found = draft([str(path)], label, Path.cwd())
    if as_json:
        print_json(
            {"headline": found.headline, "facts": dict(found.facts), "findings": [asdict(one) for one in found.findings]}
        )
        return
    _print_facts(found)
    command = shlex.join(["flatout", "new", str(path), *(["--label", label] if label is not None else [])])
    print(f"\nThis is a data file: {command} writes a recipe for it.")
