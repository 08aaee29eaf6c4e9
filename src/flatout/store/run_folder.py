"""A run is a folder: what was asked, what was decided and why, what happened, and what came of it.

runs/digits-1/
  run.json          name, identity, when it began: the mark of a run folder
  recipe.json       the recipe as resolved; recipe.py beside it where Python wrote it
  plan.json         settings with their reasons
  environment.json  machine and versions
  events.jsonl      what happened, as it happened
  checkpoints/      best + last n
  result.json       status, steps, samples, train_seconds, samples_per_s, metrics, plan
  model.safetensors the trained weights, whole
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import NotARun, StoreError, did_you_mean
from flatout.base.files import read_json, write_json
from flatout.store.checkpoints import Checkpoints
from flatout.store.lock import RunLock

FORMAT = 1
ENDED = ("finished", "diverged")  # running the same command again starts anew after these, and resumes after the rest


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def about(self) -> dict[str, Any]:
        return dict(read_json(self.path / "run.json"))

    @property
    def identity(self) -> str:
        return str(self.about["identity"])

    @property
    def result(self) -> dict[str, Any]:
        try:
            return dict(read_json(self.path / "result.json"))
        except (OSError, ValueError):
            return {}

    @property
    def status(self) -> str:
        """finished, diverged, failed, stopped, running, or interrupted (its process died)."""
        if RunLock.is_held(self.path):
            return "running"
        return str(self.result.get("status", "interrupted"))

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def weights_path(self) -> Path:
        return self.path / "model.safetensors"

    def checkpoints(self, keep: int = 2) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", keep)

    @property
    def begun(self) -> bool:
        """Everything a resume needs to know is written."""
        return (self.path / "plan.json").exists()

    def lock(self) -> RunLock:
        return RunLock(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Ours alone for as long as this lasts; RunBusy where another process has it."""
        lock = self.lock()
        lock.take()
        try:
            yield
        finally:
            lock.release()

    def read(self, name: str) -> Any:
        try:
            return read_json(self.path / name)
        except OSError as error:
            raise StoreError(f"{self.path} has no {name}: {error.strerror}") from error
        except ValueError as error:
            raise StoreError(f"{self.path / name} is not whole: {error}") from error

    def write(self, name: str, content: Any) -> None:
        write_json(self.path / name, content)


def check_place(runs: Path) -> None:
    """Before anything that takes long: runs can be created below it. What is made to find out is gone again."""
    nearest = next(place for place in (runs.absolute(), *runs.absolute().parents) if place.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".flatout-", dir=nearest))
    except OSError as error:
        raise _no_place(runs, error.strerror) from error


def create(runs: Path, stem: str, identity: str, version: str) -> RunFolder:
    """A new folder `stem-N`, N the first free number."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-") or "run"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        taken = [int(m[1]) for entry in runs.iterdir() if (m := re.fullmatch(re.escape(stem) + r"-(\d+)", entry.name))]
        number = max(taken, default=0) + 1
        while True:
            path = runs / f"{stem}-{number}"
            try:
                path.mkdir()
                break
            except FileExistsError:  # another process took it just now
                number += 1
        try:
            folder = RunFolder(path)
            about = {"name": path.name, "identity": identity, "version": version, "created": time.time()}
            folder.write("run.json", {"flatout_run": FORMAT, **about})
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    except OSError as error:
        raise _no_place(runs, error.strerror) from error
    return folder


def _no_place(runs: Path, why: str | None) -> StoreError:
    return StoreError(f"can't create a run in {runs}: {why}; choose another place with --runs")


def open_run(path: Path) -> RunFolder:
    try:
        about = read_json(path / "run.json")
        found = about["flatout_run"]
        about["identity"], float(about["created"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NotARun(f"{path} is not a flatout run: it has no run.json that flatout wrote") from None
    if found != FORMAT:
        raise StoreError(
            f"{path} was written in run format {found!r}, this flatout reads format {FORMAT}: use the version that wrote it"
        )
    return RunFolder(path)


def all_runs(runs: Path) -> Iterator[RunFolder]:
    """Runs in a folder, oldest first; other folders beside them are passed over."""
    if not runs.is_dir():
        return
    found = []
    for entry in runs.iterdir():
        try:
            folder = open_run(entry)
            found.append((float(folder.about.get("created", 0)), folder))
        except StoreError:
            continue
    yield from (folder for _, folder in sorted(found, key=lambda pair: pair[0]))


def find(runs: Path, name: str) -> RunFolder:
    """A run by its name in `runs`, by a path to its folder, or `last`."""
    if name == "last":
        known = list(all_runs(runs))
        if not known:
            raise NotARun(f"there is no run in {runs} yet")
        return known[-1]
    for candidate in (runs / name, Path(name)):
        if candidate.is_dir():
            return open_run(candidate)
    names = [folder.name for folder in all_runs(runs)]
    hint = did_you_mean(name, names) if names else f"there is no run in {runs} yet"
    raise NotARun(f"no run called {name!r} in {runs}{os.sep}; {hint}")


def find_unfinished(runs: Path, identity: str) -> RunFolder | None:
    """The newest run of this identity, if it has not ended."""
    for folder in reversed(list(all_runs(runs))):
        if folder.identity == identity:
            return None if folder.status in ENDED else folder
    return None
