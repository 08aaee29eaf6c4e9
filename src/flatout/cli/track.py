"""runs track: sends a run that is there already to a tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.base.errors import FlatoutError, MachineError, UsageError

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="tensorboard, mlflow=URI, wandb, csv, jsonl, each with =PLACE or without. May be repeated.",
        show_default=False,
    ),
]


def track(
    run: Annotated[str, typer.Argument(help="The name of a run, its folder, or `last`.", show_default=False)],
    trackers: Track = None,
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
) -> None:
    """Send a run to trackers, or what an earlier attempt did not send.

    Example: flatout runs track last --track mlflow=http://localhost:5000
    """
    from flatout.store.run_folder import find
    from flatout.tracking.asked import parse_tracks
    from flatout.tracking.follow import follow
    from flatout.tracking.make import make

    asked = parse_tracks(trackers or ())
    if not asked:
        raise UsageError("runs track needs a tracker, such as --track tensorboard")
    folder = find(runs, run)
    for one in asked:
        if why := one.why_not():
            raise MachineError(f"tracker {one}: {why}")
    for one in asked:
        try:
            count = follow(make(one), one, folder.path, lambda: True, patient=False)
        except FlatoutError:
            raise
        except Exception as error:
            why = str(error).strip().partition("\n")[0]
            raise MachineError(f"tracker {one}: {type(error).__name__}: {why}; the same command goes on from there") from error
        print(f"{one}: sent {count} log points of {folder.name}")
