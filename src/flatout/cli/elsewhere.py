"""run --on ray: the same command, on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.base.errors import UsageError
from flatout.cli.places import ray_address

if TYPE_CHECKING:
    from flatout.fleet.ray_worker import Work
    from flatout.recipe.schema import Recipe
    from flatout.runs.verbs import Run
    from flatout.tuning.verb import Seats


def handed_in(on: str, recipe: Path, arguments: Sequence[str], workers: str, runs: Path, command: str = "run") -> int | None:
    """Submit to RAY_ADDRESS if it is a dashboard and return the job's exit code; None: launch from this machine."""
    from flatout.fleet.ray import WorkerCount, is_job_url

    if on != "ray":
        raise UsageError(f"--on: only ray is supported, got {on!r}")
    WorkerCount.parse(workers)
    address = ray_address()
    if address is None or not is_job_url(address):
        return None
    from flatout.fleet.ray_submit import submit

    return submit(address, recipe, [*arguments, "--on", "ray", "--workers", workers], runs, _write, command)


def run_on_ray(work: Work, asked: Recipe, workers: str, runs: Path, quiet: bool) -> Run:
    from flatout.cli.progress import progress_view
    from flatout.fleet.ray import WorkerCount, launch
    from flatout.runs import verbs

    gpus = _wants_gpus(asked)
    with progress_view(quiet) as observers:
        folder = launch(work, WorkerCount.parse(workers), runs, address=ray_address(), gpus=gpus, observers=observers)
    return verbs.load(folder)


def seats_on_ray(asked: Recipe, workers: str, say: Callable[[str], None]) -> Seats:
    """For the trials of a study."""
    from flatout.fleet.ray import WorkerCount
    from flatout.fleet.ray_crew import ray_seats

    count = WorkerCount.parse(workers)
    return partial(ray_seats, workers=count, address=ray_address(), gpus=_wants_gpus(asked), say=say)


def _wants_gpus(asked: Recipe) -> bool | None:
    device = asked.pins.get("device", "auto")
    return None if device == "auto" else device.startswith("cuda")


def _write(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
