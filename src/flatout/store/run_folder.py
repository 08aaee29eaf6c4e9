"""A run is a folder: its recipe, its plan with reasons, its events, its checkpoints and its result.

runs/digits-1/
  manifest.jsonl    the checksum of every file below, recorded before the file got its name
  run.json          name, identity, start time: marks a run folder
  recipe.json       the resolved recipe; also recipe.py if it came from a Python file
  draft.yaml        the recipe with comments, if fo.run drafted a part of it
  plan.json         settings with their reasons
  environment.json  machine and versions
  events.jsonl      events in the order they happened
  checkpoints/      best + last n
  result.json       status, steps, samples, train_seconds, samples_per_s, metrics, plan
  model.safetensors all trained weights
  adapter/          of a run with lora: its adapters in PEFT's format
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flatout.base.errors import DamagedFile, FlatoutError, MissingFile, NotARun, StoreError, did_you_mean
from flatout.base.events import read_events
from flatout.base.files import json_bytes, parse_json, write_bytes
from flatout.base.manifest import Manifest
from flatout.store.checkpoints import Checkpoints
from flatout.store.lock import RunLock

FORMAT = 2
RATE_FILE = "rate.json"  # of a run with lr: auto
WITHOUT_MANIFEST = 1
ENDED = ("finished", "diverged")  # after these the same command starts a new run; after any other status it resumes

_Parsed = TypeVar("_Parsed")
_OnTrouble = Callable[[Path, StoreError], None]


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def about(self) -> dict[str, Any]:
        return self.parsed("run.json", dict)

    @property
    def identity(self) -> str:
        return str(self.about["identity"])

    @property
    def result(self) -> dict[str, Any]:
        """Empty if there is none yet."""
        return self.parsed_result(dict)

    def parsed_result(self, build: Callable[[Any], _Parsed]) -> _Parsed:
        try:
            return self.parsed("result.json", build)
        except MissingFile:
            return build({})

    @property
    def status(self) -> str:
        """finished, diverged, failed, stopped, running, interrupted (its process died), or damaged (files can't be read)."""
        if RunLock.is_held(self.path):
            return "running"
        try:
            return str(self.result.get("status", "interrupted"))
        except StoreError:
            return "damaged"

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
        """Whether everything that a resume needs is written."""
        return (self.path / "plan.json").exists() or bool(self.checkpoints().steps())

    def lock(self) -> RunLock:
        return RunLock(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock; raises RunBusy if another process has it."""
        lock = self.lock()
        lock.take()
        try:
            yield
        finally:
            lock.release()

    @property
    def manifest(self) -> Manifest:
        return Manifest(self.path, self._remedy)

    def read(self, name: str) -> Any:
        """The content of a JSON file, checked."""
        try:
            content = self.manifest.read(name)
        except MissingFile:
            if self.begun and name != "result.json" and name in self.manifest.names():
                raise DamagedFile(f"{self.path / name} is missing; {self._remedy(name)}") from None
            raise
        try:
            return parse_json(content)
        except ValueError as error:
            raise DamagedFile(f"{self.path / name} is incomplete: {error}; {self._remedy(name)}") from error

    def parsed(self, name: str, build: Callable[[Any], _Parsed]) -> _Parsed:
        """`build` applied to the content of a JSON file; content that it can't use counts as damage."""
        content = self.read(name)
        try:
            return build(content)
        except FlatoutError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise DamagedFile(f"{self.path / name} can't be used: {why}; {self._remedy(name)}") from error

    def write(self, name: str, content: Any) -> None:
        self.write_bytes(name, json_bytes(content))

    def write_bytes(self, name: str, content: bytes) -> None:
        self.manifest.write(name, content)

    def adopt(self) -> None:
        """Add a manifest to a run that was started by a version without manifests. The caller holds the run's lock."""
        about = self.about
        if about["flatout_run"] != FORMAT or not self.manifest.exists:
            self.accept()

    def accept(self) -> None:
        """Accept all files as they are: write a new manifest."""
        about = parse_json((self.path / "run.json").read_bytes())
        after = json_bytes({**about, "flatout_run": FORMAT})
        self.manifest.rewrite(self.covered(), planned={"run.json": after}, identity=about["identity"], order=order_of(about))
        write_bytes(self.path / "run.json", after)

    def check(self) -> dict[str, str]:
        """Read all files; returns the damaged ones with the reason."""
        found: dict[str, str] = {}

        def look(name: str, reading: Callable[[], object]) -> None:
            try:
                reading()
            except (StoreError, OSError) as error:
                found[name] = str(error)

        if not self.manifest.exists:
            found["manifest.jsonl"] = "missing: the files are read without checking them"
        elif (damage := self.manifest.damage()) is not None:
            found["manifest.jsonl"] = damage
        for name in self.covered():
            look(name, partial(self.manifest.check, name))
        for name in set(self.manifest.names()) - set(self.covered()) - {"result.json"}:
            found[name] = f"{self.path / name} is missing"
        bad = [str(event["why"]) for event in read_events(self.events_path) if event.get("kind") == "damaged"]
        if bad:
            found["events.jsonl"] = f"{bad[0]}" + (f", and {len(bad) - 1} more lines" if len(bad) > 1 else "")
        checkpoints = self.checkpoints()
        look("checkpoints/best.json", checkpoints.best)
        for step in checkpoints.steps():
            look(f"checkpoints/{checkpoints.path(step).name}", partial(checkpoints.load, step))
        return found

    def covered(self) -> list[str]:
        """The files that the manifest covers. Events, checkpoints and compiled code have their own checksums."""
        others = ("manifest.jsonl", "events.jsonl", "lock", "compile_cache.bin")
        return sorted(
            entry.name
            for entry in self.path.iterdir()
            if entry.is_file() and not entry.name.startswith(".") and entry.name not in others
        )

    def _remedy(self, name: str) -> str:
        known = {
            "model.safetensors": "move it away to use the weights of the best (or last) checkpoint",
            "result.json": "if the run had not finished, delete this file; the same command then resumes",
        }
        return known.get(name, "restore it from a copy, or train again with --fresh")


def check_place(runs: Path) -> None:
    """Check early that runs can be created in this folder. Removes what it creates for the check."""
    nearest = next(place for place in (runs.absolute(), *runs.absolute().parents) if place.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".flatout-", dir=nearest))
    except OSError as error:
        raise _no_place(runs, error.strerror) from error


def create(runs: Path, stem: str, identity: str, version: str, **more: Any) -> RunFolder:
    """A new folder `stem-N` with the first free number N. `more` goes to its run.json."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-") or "run"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        taken = [int(m[1]) for entry in runs.iterdir() if (m := re.fullmatch(re.escape(stem) + r"-(\d+)", entry.name))]
        order = _next_order(runs)
        number = max(taken, default=0) + 1
        while True:
            path = runs / f"{stem}-{number}"
            try:
                path.mkdir()
                break
            except FileExistsError:  # another process just created it
                number += 1
        try:
            folder = RunFolder(path)
            about = {"name": path.name, "identity": identity, "version": version, "created": time.time(), "order": order}
            folder.manifest.begin(identity=identity, order=order)
            folder.write("run.json", {"flatout_run": FORMAT, **about, **more})
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    except OSError as error:
        raise _no_place(runs, error.strerror) from error
    return folder


def _no_place(runs: Path, why: str | None) -> StoreError:
    return StoreError(f"can't create a run in {runs}: {why}; choose another folder with --runs")


def open_run(path: Path) -> RunFolder:
    return _opened(path)[0]


def _opened(path: Path) -> tuple[RunFolder, dict[str, Any]]:
    """The folder and its run.json, so that the file is read only once."""
    folder = RunFolder(path)
    is_ours = folder.manifest.exists or ((path / "plan.json").exists() and folder.events_path.exists())
    not_ours = NotARun(f"{path} is not a flatout run: it has no run.json written by flatout")
    try:
        about = folder.about
        found = about["flatout_run"]
        str(about["identity"]), float(about["created"]), order_of(about)
    except MissingFile:
        if is_ours and folder.begun:
            raise DamagedFile(f"{path / 'run.json'} is missing; {folder._remedy('run.json')}") from None
        raise not_ours from None
    except DamagedFile:
        if is_ours:
            raise
        raise not_ours from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if is_ours:
            raise DamagedFile(f"{path / 'run.json'} was not written by flatout; {folder._remedy('run.json')}") from error
        raise not_ours from None
    if found not in (FORMAT, WITHOUT_MANIFEST):
        raise StoreError(
            f"{path} has run format {found!r}, this flatout reads format {FORMAT}: use the flatout version that wrote it"
        )
    if found == FORMAT and folder.begun and not folder.manifest.exists:
        raise DamagedFile(
            f"{folder.manifest.path} is missing, so the other files can't be checked; restore it from a copy, or accept "
            f"the files as they are: flatout runs check {path} --accept"
        )
    return folder, about


def order_of(about: Mapping[str, Any]) -> int:
    """Later runs in a folder have a higher number, whatever the clock says. 0: written by a version without this number."""
    return int(about.get("order", 0))


def _next_order(runs: Path) -> int:
    damaged: list[Path] = []
    known = [order_of(about) for _, about in _all_opened(runs, lambda path, error: damaged.append(path))]
    known += [order for path in damaged if (order := _noted(path, "order")) is not None]
    return max(known, default=0) + 1


def _noted(path: Path, name: str) -> Any:
    """What the manifest says about a run whose run.json is damaged; None if the manifest is damaged too."""
    try:
        return Manifest(path).about.get(name)
    except (OSError, StoreError):
        return None


def all_runs(runs: Path, on_trouble: _OnTrouble = lambda path, error: None) -> Iterator[RunFolder]:
    """Runs in a folder, oldest first. Unreadable runs are reported to `on_trouble`; other folders are skipped."""
    yield from (folder for folder, _ in _all_opened(runs, on_trouble))


def _all_opened(runs: Path, on_trouble: _OnTrouble) -> list[tuple[RunFolder, dict[str, Any]]]:
    if not runs.is_dir():
        return []
    found = []
    for entry in sorted(runs.iterdir()):
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        try:
            found.append(_opened(entry))
        except NotARun:
            continue
        except StoreError as error:
            on_trouble(entry, error)
    return sorted(found, key=lambda pair: (order_of(pair[1]), float(pair[1]["created"])))


def find(runs: Path, name: str) -> RunFolder:
    """A run by its name in `runs`, by a path to its folder, or `last`."""
    if name == "last":
        return _last(runs)
    for candidate in (runs / name, Path(name)):
        if os.path.isdir(candidate):  # of any text: Path.is_dir raises for a name that is too long
            return open_run(candidate)
    names = [folder.name for folder in all_runs(runs)]
    hint = did_you_mean(name, names) if names else f"there is no run in {runs} yet"
    raise NotARun(f"no run named {name!r} in {runs}{os.sep}; {hint}")


def find_to_mend(runs: Path, name: str) -> RunFolder:
    """By name or path, even with wrong checksums: only its run.json must be readable."""
    path = next((one for one in (runs / name, Path(name)) if os.path.isdir(one)), None)
    if path is None:
        return find(runs, name)
    try:
        about = parse_json((path / "run.json").read_bytes())
        about["flatout_run"], str(about["identity"]), order_of(about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DamagedFile(f"{path / 'run.json'} can't be read: restore it from a copy") from None
    return RunFolder(path)


def _last(runs: Path) -> RunFolder:
    troubled: dict[Path, StoreError] = {}
    known = list(all_runs(runs, troubled.__setitem__))
    newest = order_of(known[-1].about) if known else -1
    for path, error in troubled.items():
        order = _noted(path, "order")
        if order is None or order > newest:
            raise StoreError(f"can't tell which run is the last one, use its name instead of `last`: {error}")
    if not known:
        raise NotARun(f"there is no run in {runs} yet")
    return known[-1]


def find_unfinished(runs: Path, identity: str) -> RunFolder | None:
    """The newest run of this identity, if it has not ended. A damaged run that may be it raises an error, so that nobody starts
    a new run without knowing about it."""
    troubled: dict[Path, StoreError] = {}
    same = [pair for pair in _all_opened(runs, troubled.__setitem__) if pair[1]["identity"] == identity]
    newest = order_of(same[-1][1]) if same else -1
    for path, error in troubled.items():
        order = _noted(path, "order")
        may_be_it = _noted(path, "identity") in (identity, None) and (order is None or order > newest)
        if isinstance(error, DamagedFile) and may_be_it and not _has_ended(path):
            raise DamagedFile(f"{path} can't be read but may be an unfinished run of this recipe: {error}. Or move it away")
    if not same:
        return None
    folder, status = same[-1][0], same[-1][0].status
    if status == "damaged":
        folder.result  # noqa: B018  raises an error that says what is wrong
    return None if status in ENDED else folder


def _has_ended(path: Path) -> bool:
    try:
        return RunFolder(path).result.get("status") in ENDED
    except StoreError:
        return False
