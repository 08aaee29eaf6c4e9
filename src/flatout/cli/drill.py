"""drill: does a killed run resume to exactly the same result?"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.output import print_json
from flatout.cli.places import allow_deterministic_cuda
from flatout.cli.training import Json, Offs, Overrides, RecipePath, Sets


def drill(
    recipe: RecipePath,
    overrides: Overrides = None,
    kills: Annotated[int, typer.Option("--kills", min=1, help="How often to kill the run.")] = 20,
    sets: Sets = None,
    offs: Offs = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed for the moments of the kills.")] = 0,
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep both runs in this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Test that killed runs resume to the same result. Kills at random moments, resumes each time, compares bit for bit.

    Example: flatout drill mine.yaml --kills 20
    """
    from flatout.base.tree import to_data, to_text
    from flatout.drill.drill import doc
    from flatout.drill.drill import drill as do_drill

    allow_deterministic_cuda()  # inherited by the runs it starts
    arguments = [*(overrides or [])]
    for flag, values in (("--set", sets), ("--off", offs)):
        for value in values or []:
            arguments += [flag, value]

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        report = do_drill(recipe, arguments, kills=kills, folder=keep or Path(scratch), seed=seed, tell=tell)
    print_json(to_data(doc(report))) if as_json else print(to_text(doc(report)))
    if not report.passed:
        raise typer.Exit(1)
