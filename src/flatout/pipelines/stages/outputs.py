"""Outputs in their places: whether they are as they were made, making room for new ones, and what of them others depend on."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from flatout.base.errors import DataError, StoreError
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.stages.deployed import in_use, package_id
from flatout.pipelines.stages.records import StageRecord
from flatout.pipelines.stages.resolved import ResolvedStage

# The files that later stages depend on; the others hold times and places, which differ each time.
_PACKAGE = ("program.json", "code.json", "weights.safetensors", "fitted.json", "signature.json", "samples.safetensors")
_MEANING = {
    "train": ("model.safetensors", "recipe.json", "data.json"),
    "tune": ("best.yaml",),
    "export": _PACKAGE,
    "shrink": _PACKAGE,
}
REPEATABLE = ("run", "train", "export", "evaluate")  # two makings with one key have the same content


def contents(stage: ResolvedStage, hashes: InputHashes) -> dict[str, str] | None:
    """The content of each output; None if one is not there."""
    if stage.kind == "deploy":
        now = in_use(stage.product)
        return None if now is None else {now.name: package_id(now)}
    found = {}
    for place, output in enumerate(stage.outputs):
        if not output.exists():
            return None
        found[str(place)] = hashes.of(output).digest
    return found


def meaning(stage: ResolvedStage, found: Mapping[str, str], hashes: InputHashes) -> str:
    """The digest of what stages that use this one depend on."""
    names = _MEANING.get(stage.kind)
    if names is None:
        parts = [f"{name} {digest}" for name, digest in sorted(found.items())]
    else:
        files = [stage.product / name for name in names]
        parts = [f"{path.name} {hashes.of(path).digest}" for path in files if path.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


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
