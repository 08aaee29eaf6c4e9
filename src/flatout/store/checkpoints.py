"""Checkpoints of a run: `checkpoints/step-000000120/` with state.safetensors, state.json and manifest.json (checksums).

A checkpoint is written aside as `.writing-step-...`, synced, then renamed, so one that has its name is whole. At load the
checksums are compared; a damaged one is named and the one before it is used.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from flatout.base.errors import DamagedCheckpoint, StoreError
from flatout.base.files import read_json, sync_folder, write_json
from flatout.store.tensors import ToHost, decode, file_digest, plain_copy, read_tensors, write_tensors

FORMAT = 1
_NAME = re.compile(r"step-(\d+)")
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

    def write(self, step: int, document: Any, tensors: Mapping[str, Tensor], to_host: ToHost = plain_copy) -> Path:
        """Write what `encode` gave as a whole checkpoint, or none at all."""
        self.folder.mkdir(exist_ok=True)
        final = self.path(step)
        aside, replaced = self.folder / f"{_ASIDE}{final.name}", self.folder / f"{_REPLACED}{final.name}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir()
            digest = write_tensors(aside / "state.safetensors", tensors, to_host=to_host)
            write_json(aside / "state.json", {"format": FORMAT, "step": step, "state": document})
            write_json(
                aside / "manifest.json",
                {"format": FORMAT, "sha256": {"state.safetensors": digest, "state.json": file_digest(aside / "state.json")}},
            )
            sync_folder(aside)
            if final.exists():  # the same step again, after a rollback
                final.rename(replaced)
            aside.rename(final)
            sync_folder(self.folder)
            shutil.rmtree(replaced, ignore_errors=True)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            if replaced.exists() and not final.exists():
                replaced.rename(final)
            raise
        return final

    def load(self, step: int) -> Any:
        path = self.path(step)
        try:
            manifest = read_json(path / "manifest.json")
            _check_format(manifest["format"], path)
            for name, digest in manifest["sha256"].items():
                if file_digest(path / name) != digest:
                    raise DamagedCheckpoint(f"{path / name} does not have the checksum it was written with")
            document = read_json(path / "state.json")
            return decode(document["state"], read_tensors(path / "state.safetensors"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedCheckpoint(f"{path} can't be read: {type(error).__name__}: {error}") from error

    def load_latest(self, on_damage: Callable[[int, str], None]) -> tuple[int, Any] | None:
        """The newest checkpoint that is whole; each damaged one on the way is reported and passed over."""
        for step in reversed(self.steps()):
            try:
                return step, self.load(step)
            except DamagedCheckpoint as damage:
                on_damage(step, str(damage))
        return None

    def mark_best(self, step: int, metric: str, value: float) -> None:
        write_json(self.folder / "best.json", {"step": step, "metric": metric, "value": value})

    def best(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = read_json(self.folder / "best.json")
        except (OSError, ValueError):
            return None
        return found if found.get("step") in self.steps() else None

    def prune(self) -> None:
        """Keep the best and the last `keep`."""
        best = self.best()
        for step in self.steps()[: -max(1, self.keep)]:
            if best is None or step != best["step"]:
                shutil.rmtree(self.path(step), ignore_errors=True)

    def sweep(self) -> list[str]:
        """Remove what a killed writer left behind; returns the names."""
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
        """A damaged one must not count as one of the last `keep`; it stays there under another name."""
        damaged = self.folder / f"damaged-{self.path(step).name}"
        shutil.rmtree(damaged, ignore_errors=True)
        self.path(step).rename(damaged)

    def being_written(self) -> int | None:
        """The step whose checkpoint is being written right now, or was when its writer died."""
        if self.folder.is_dir():
            for entry in self.folder.iterdir():
                if entry.name.startswith(_ASIDE) and (match := _NAME.fullmatch(entry.name.removeprefix(_ASIDE))):
                    return int(match[1])
        return None


def _check_format(found: object, path: Path) -> None:
    if found != FORMAT:
        raise StoreError(
            f"{path} has checkpoint format {found!r}, this flatout reads format {FORMAT}: "
            "resume it with the version that wrote it, or start anew with --fresh"
        )
