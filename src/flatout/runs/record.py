"""What is written down of a run: how it began, and how it ended. What the disk refuses is said in words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from flatout.base.errors import Diverged, Stopped, StoreError
from flatout.base.events import Event, read_events
from flatout.base.kinds import check_kinds
from flatout.data.data import Data
from flatout.data.kept import remember
from flatout.engine.job import Job
from flatout.machine.facts import read_facts
from flatout.measure.receipt import Receipt
from flatout.plan.plan import Plan
from flatout.recipe.schema import Recipe
from flatout.store.run_folder import RunFolder
from flatout.world.watch import Failed, Lost, StoreLost


@dataclass(frozen=True)
class Origin:
    """Where a recipe came from, as origin.json has it. `source`: the file that has it now, None if no file can."""

    folder: str
    source: Literal["recipe.py", "recipe.json"] | None
    file: str | None = None
    overrides: tuple[str, ...] = ()
    pins: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, written: Any) -> Origin:
        check_kinds(cls, written)
        return cls(**written)


def write_beginning(folder: RunFolder, recipe: Recipe, plan: Plan, job: Job, receipt: Receipt | None) -> None:
    python = recipe.source is not None and recipe.source.suffix == ".py"
    objects = (
        isinstance(recipe.data, Data) or callable(recipe.model) or callable(recipe.objective) or callable(recipe.optimizer)
    )
    overrides, pins = recipe.given
    origin = Origin(
        str(recipe.folder.resolve()),
        "recipe.py" if python else None if objects else "recipe.json",
        str(recipe.source.resolve()) if recipe.source else None,
        tuple(overrides),
        dict(pins),
    )
    folder.write("recipe.json", recipe.written())
    folder.write("data.json", remember(job.data))
    folder.write("origin.json", asdict(origin))
    if python:
        assert recipe.source is not None
        folder.write_bytes("recipe.py", recipe.source.read_bytes())
    folder.write("environment.json", read_facts().to_dict())
    if receipt is not None:
        folder.write("receipt.json", receipt.to_dict())
    folder.write("plan.json", plan.to_dict())  # the last one: with it a run has begun


def write_result(folder: RunFolder, result: dict[str, Any]) -> None:
    with suppress(OSError):  # the error that ended the run is the one to show
        folder.write("result.json", result)


def so_far(folder: RunFolder) -> dict[str, Any]:
    """What a run that did not end had come to, from its events."""
    last: dict[str, Event] = {event.get("kind", ""): event for event in read_events(folder.events_path)}
    step, evaluation = last.get("step", {}), last.get("evaluation", {})
    metrics = {"train_loss": step.get("loss"), **evaluation.get("metrics", {})}
    return {"steps": step.get("step"), "samples": step.get("samples"), "metrics": metrics} if step else {}


def status_after(error: BaseException) -> str:
    if isinstance(error, Stopped | KeyboardInterrupt):
        return "stopped"
    return "diverged" if isinstance(error, Diverged) else "failed"


def status_of(news: Failed | Lost | StoreLost) -> str:
    """A process that is gone interrupts a run, as it does where it is the only one."""
    return "failed" if isinstance(news, Failed) else "interrupted"


@contextmanager
def said_in_words(folder: RunFolder) -> Iterator[None]:
    """What the disk refuses, in words. A run that had not begun leaves nothing behind."""
    try:
        yield
    except OSError as error:
        kept = "its checkpoints are as they were: mend that, and the same command goes on from the last one"
        if not folder.begun:
            shutil.rmtree(folder.path, ignore_errors=True)
            kept = "nothing was trained: mend that, or choose another place with --runs"
        place = error.filename or folder.path
        raise StoreError(f"{place}: {error.strerror or error}; {kept}") from error
