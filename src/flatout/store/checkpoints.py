"""Checkpoints of a run: `checkpoints/step-000000120/` with state.safetensors, state.json and manifest.json (checksums).

A checkpoint written by several processes has one file per process instead of state.safetensors (sharded.py). A checkpoint is
written as `.writing-step-...`, synced, then renamed, so one with its final name is complete. Checksums are compared at load; a
damaged checkpoint is reported and the previous one is used.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DamagedCheckpoint, DamagedFile, StoreError
from flatout.base.files import read_json, sync_folder, write_bytes, write_json
from flatout.base.sealed import opened, sealed
from flatout.store.sharded_files import TensorFiles
from flatout.store.tensors import ToHost, check_document, decode, file_digest, plain_copy, read_tensors, write_tensors

FORMAT = 1
SHARDED = "sharded 1"  # written by several processes; versions that only know format 1 refuse it
_NAME = re.compile(r"step-(\d+)")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ASIDE = ".writing-"
_REPLACED = ".replaced-"


@dataclass(frozen=True)
class Checkpoints:
    folder: Path
    keep: int = 2

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.folder.iterdir() if (match := _NAME.fullmatch(entry.name)))

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def aside(self, step: int) -> Path:
        """The folder's temporary name while it is written."""
        return self.folder / f"{_ASIDE}{self.path(step).name}"

    def write(self, step: int, document: Any, tensors: Mapping[str, Tensor], to_host: ToHost = plain_copy) -> Path:
        """Write the result of `encode` as a complete checkpoint, or nothing."""
        try:
            aside = self.begin(step)
            digest = write_tensors(aside / "state.safetensors", tensors, to_host=to_host)
            return self.finish(step, document, {"state.safetensors": digest})
        except BaseException:
            self.discard(step)
            raise

    def begin(self, step: int) -> Path:
        """An empty folder for the tensors of a checkpoint. `finish` gives it its name, `discard` removes it."""
        self.folder.mkdir(exist_ok=True)
        aside = self.aside(step)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        return aside

    def finish(self, step: int, document: Any, digests: Mapping[str, str], form: int | str = FORMAT) -> Path:
        """`digests`: the tensor files written since `begin`, with their checksums."""
        final = self.path(step)
        aside, replaced = self.aside(step), self.folder / f"{_REPLACED}{final.name}"
        write_json(aside / "state.json", {"format": form, "step": step, "state": document})
        listed = {**digests, "state.json": file_digest(aside / "state.json")}
        write_bytes(aside / "manifest.json", sealed({"format": form, "sha256": listed}) + b"\n")
        sync_folder(aside)
        if final.exists():  # the same step again after a rollback
            final.rename(replaced)
        aside.rename(final)
        sync_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)
        return final

    def discard(self, step: int) -> None:
        final = self.path(step)
        replaced = self.folder / f"{_REPLACED}{final.name}"
        shutil.rmtree(self.aside(step), ignore_errors=True)
        if replaced.exists() and not final.exists():
            replaced.rename(final)

    def load(self, step: int) -> Any:
        path = self.path(step)
        manifest, document = read_head(path)
        with named_as_damage(path):
            check_files(path, manifest, manifest["sha256"])
            return decode(document, _tensors(path, manifest))

    def load_latest(self, on_damage: Callable[[int, str], None]) -> tuple[int, Any] | None:
        """The newest complete checkpoint; each damaged one found before it is reported and skipped."""
        for step in reversed(self.steps()):
            try:
                return step, self.load(step)
            except DamagedCheckpoint as damage:
                on_damage(step, str(damage))
        return None

    def mark_best(self, step: int, metric: str, value: float) -> None:
        write_bytes(self.folder / "best.json", sealed({"step": step, "metric": metric, "value": value}) + b"\n")

    def best(self) -> dict[str, Any] | None:
        path = self.folder / "best.json"
        try:
            found = opened(path.read_bytes().rstrip())
            step = found["step"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            raise DamagedFile(f"{path} can't be read: {error}; delete it to use the last checkpoint as the best") from error
        return {name: found.get(name) for name in ("step", "metric", "value")} if step in self.steps() else None

    def is_marked(self, best: Mapping[str, Any]) -> bool:
        """Also False if the mark is damaged: it must be written again."""
        try:
            return self.best() == best
        except DamagedFile:
            return False

    def prune(self) -> None:
        """Delete all but the best checkpoint and the last `keep`."""
        try:
            best = self.best()
        except DamagedFile:
            return  # the mark can't be read, so any of them may be the best
        for step in self.steps()[: -max(1, self.keep)]:
            if best is None or step != best["step"]:
                shutil.rmtree(self.path(step), ignore_errors=True)

    def sweep(self) -> list[str]:
        """Remove what a killed process left behind; returns the names."""
        if not self.folder.is_dir():
            return []
        left = [entry for entry in self.folder.iterdir() if entry.name.startswith((_ASIDE, _REPLACED))]
        for entry in left:
            whole = self.folder / entry.name.removeprefix(_REPLACED)
            if entry.name.startswith(_REPLACED) and not whole.exists():  # killed between the two renames
                entry.rename(whole)
            else:
                shutil.rmtree(entry, ignore_errors=True)
        return [entry.name for entry in left]

    def set_aside(self, step: int) -> None:
        """Rename a damaged checkpoint, so that it does not count as one of the last `keep`."""
        damaged = self.folder / f"damaged-{self.path(step).name}"
        shutil.rmtree(damaged, ignore_errors=True)
        self.path(step).rename(damaged)

    def being_written(self) -> int | None:
        """The step whose checkpoint is being written now, or was when the process died."""
        if self.folder.is_dir():
            for entry in self.folder.iterdir():
                if entry.name.startswith(_ASIDE) and (match := _NAME.fullmatch(entry.name.removeprefix(_ASIDE))):
                    return int(match[1])
        return None


# all errors that a damaged file can cause in json, safetensors or torch
_OF_THE_CONTENT = (
    OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError, OverflowError, MemoryError,
    AssertionError,
)  # fmt: skip


@contextmanager
def named_as_damage(path: Path) -> Iterator[None]:
    """Raise DamagedCheckpoint for every error caused by unreadable content."""
    try:
        yield
    except DamagedFile as error:
        raise DamagedCheckpoint(f"{path} can't be read: {error}") from error
    except _OF_THE_CONTENT as error:
        raise DamagedCheckpoint(f"{path} can't be read: {type(error).__name__}: {error}") from error


@contextmanager
def fits_the_run(path: Path) -> Iterator[None]:
    """While a checkpoint's state is loaded into the parts of a run: an error names the checkpoint that does not fit."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (StoreError, *_OF_THE_CONTENT) as error:
        why = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
        raise DamagedCheckpoint(
            f"{path} does not fit this run: {' '.join(why.split())[:500]}; move it away to use the checkpoint before it"
        ) from error


def read_head(path: Path) -> tuple[dict[str, Any], Any]:
    """(manifest, document) of a checkpoint: its files, and its state without the tensors."""
    with named_as_damage(path):
        manifest = opened((path / "manifest.json").read_bytes().strip())
        form, listed = manifest["format"], manifest["sha256"]
        plain = {"format": form, "sha256": {str(name): str(digest) for name, digest in dict(listed).items()}}
        if strange := [name for name in plain["sha256"] if not _FILE.fullmatch(name)]:
            raise DamagedCheckpoint(f"{path / 'manifest.json'} lists {strange[0]!r}, which is not a file of a checkpoint")
    if form not in (FORMAT, SHARDED):
        raise StoreError(
            f"{path} has checkpoint format {form!r}, this flatout reads format {FORMAT} and {SHARDED!r}: "
            "resume with the version that wrote it, or start a new run with --fresh"
        )
    with named_as_damage(path):
        check_files(path, plain, ["state.json"])
        document = read_json(path / "state.json")["state"]
        check_document(document)
    return plain, document


def check_files(path: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if file_digest(path / name) != manifest["sha256"][name]:
            raise DamagedCheckpoint(f"{path / name} does not match its checksum")


def _tensors(path: Path, manifest: Mapping[str, Any]) -> Mapping[str, Tensor]:
    if manifest["format"] == FORMAT:
        return read_tensors(path / "state.safetensors")
    return TensorFiles(path, manifest["sha256"]).read_whole()
