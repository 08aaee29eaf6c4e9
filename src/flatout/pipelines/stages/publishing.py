"""Room for new outputs, and new outputs in their places."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flatout.base.errors import DataError, StoreError
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.stages.records import StageRecord
from flatout.pipelines.stages.resolved import ResolvedStage


def clear(stage: ResolvedStage, last: StageRecord | None, hashes: InputHashes, aside: Path, working: bool) -> list[str]:
    """Make room for new outputs. What this stage did not make, or what was changed since, is moved to `aside` and named.

    `working`: a try that was killed has left parts of its outputs there.
    """
    notes = []
    for place, output in enumerate(stage.outputs):
        if not (output.exists() or output.is_symlink()):
            continue
        own = working
        if not own and last is not None and str(place) in last.outputs and output.exists():
            try:
                own = hashes.of(output).digest == last.outputs[str(place)]
            except DataError:
                own = False
        try:
            if own:
                _remove(output)
            else:
                kept = _free_name(aside, output.name)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(output, kept)
                notes.append(f"{output.name} was there and not as stage {stage.name} made it: moved to {kept}")
        except OSError as error:
            raise StoreError(f"stage {stage.name} can't replace {output}: {error.strerror or error}") from error
    return notes


def publish(made: Path, target: Path) -> None:
    """What was made aside gets its place at once."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(made, target)
        except OSError:  # another file system
            partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(made, partial, symlinks=True) if made.is_dir() else shutil.copy2(made, partial)
            os.rename(partial, target)
            _remove(made)
    except OSError as error:
        raise StoreError(f"{target} can't be written: {error.strerror or error}") from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _free_name(folder: Path, name: str) -> Path:
    number = 1
    while (place := folder / f"{name}.{number}").exists():
        number += 1
    return place
