"""The folder of a study: study.json (what was asked), study.jsonl (what happened), states of trials, result.json."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import NotARun, StoreError
from flatout.base.events import read_events
from flatout.base.files import read_json, write_json
from flatout.tuning.space.space import Space

FORMAT = 1
_ASKED, _LOG, _RESULT = "study.json", "study.jsonl", "result.json"


@dataclass(frozen=True)
class StudyFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def asked(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = read_json(self.path / _ASKED)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path / _ASKED} can't be read: {error}") from error
        if found.get("flatout_study") != FORMAT:
            raise StoreError(f"{self.path} has study format {found.get('flatout_study')!r}, this flatout reads format {FORMAT}")
        return found

    @property
    def space(self) -> Space:
        return Space.parse(self.asked["space"])

    @property
    def log_path(self) -> Path:
        return self.path / _LOG

    @property
    def states(self) -> Path:
        return self.path / "states"

    @property
    def best_path(self) -> Path:
        return self.path / "best.yaml"

    @property
    def result(self) -> dict[str, Any] | None:
        """None while it is unfinished."""
        try:
            found: dict[str, Any] = read_json(self.path / _RESULT)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{self.path / _RESULT} can't be read ({error}): delete it, and the same `flatout tune` command writes it again"
            ) from error
        return found

    def events(self) -> list[dict[str, Any]]:
        return list(read_events(self.log_path)) if self.log_path.exists() else []

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.path / _RESULT, result)
        if not result.get("stopped"):  # else it may go on
            shutil.rmtree(self.states, ignore_errors=True)

    def reopen(self, asked: dict[str, Any]) -> None:
        """It goes on, maybe with a larger budget, and its result will be another one."""
        self.ask(asked)
        self.states.mkdir(exist_ok=True)
        (self.path / _RESULT).unlink(missing_ok=True)

    def ask(self, asked: dict[str, Any]) -> None:
        write_json(self.path / _ASKED, {"flatout_study": FORMAT, **asked})


def is_study(path: Path) -> bool:
    return (path / _ASKED).is_file()


def all_studies(runs: Path) -> Iterator[StudyFolder]:
    """Oldest first."""
    if not runs.is_dir():
        return
    found = [StudyFolder(path) for path in runs.iterdir() if path.is_dir() and is_study(path)]
    yield from sorted(found, key=lambda one: (one.path / _ASKED).stat().st_mtime)


def find_study(runs: Path, name: str) -> StudyFolder:
    """By name, by folder, or `last`."""
    if name == "last":
        if not (known := list(all_studies(runs))):
            raise NotARun(f"there is no study in {runs}: flatout tune RECIPE makes one")
        return known[-1]
    for path in (runs / name, Path(name)):
        if is_study(path):
            return StudyFolder(path)
    raise NotARun(f"{name} is no study in {runs}: flatout runs lists what is there")


def find_alike(runs: Path, identity: str) -> StudyFolder | None:
    """The newest study of the same recipe, code, data and space."""
    return next((one for one in reversed(list(all_studies(runs))) if one.asked.get("identity") == identity), None)


def create_study(runs: Path, stem: str, asked: dict[str, Any]) -> StudyFolder:
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-") or "recipe"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = runs / f"{stem}-tuned-{number}"
            try:
                path.mkdir()
                break
            except FileExistsError:
                number += 1
    except OSError as error:
        raise StoreError(f"can't create a study in {runs}: {error.strerror}; choose another folder with --runs") from error
    folder = StudyFolder(path)
    folder.states.mkdir()
    folder.ask({**asked, "name": path.name, "created": time.time()})
    return folder
