"""The folder of a deploy stage: packages that are or were in use, a link to the one that is, and what led to each.

production/current            a link to the package in use
production/3f1c09ab52de/      a package, by the digest of its manifest
production/3f1c09ab52de.json  the stages that made it: data, code, plan, run, gate
production/deployed.jsonl     what was deployed when
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.files import sync_folder, write_json
from flatout.base.sealed import append, read_lines, sealed
from flatout.pipelines.stages.resolved import CURRENT

_LOG, _MANIFEST = "deployed.jsonl", "manifest.json"
_KEPT = 3


@dataclass(frozen=True)
class OldModel:
    """What a gate compares with. `identity` is empty if there is none; `path` is None if it is not there any more."""

    identity: str
    path: Path | None


def package_id(package: Path) -> str:
    """Of its manifest, which has the digests of all other files. Empty if this is no package."""
    try:
        return hashlib.sha256((package / _MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def in_use(folder: Path) -> Path | None:
    """The package that the link names, if it is there."""
    current = folder / CURRENT
    if not current.is_symlink():
        return None
    target = folder / os.readlink(current)
    return target if (target / _MANIFEST).is_file() else None


def old_model(folder: Path, gate: str, model: str) -> OldModel:
    """What a gate compares with: the package in use; or, if that is the gate's own model, the one before it.

    Otherwise a model that was deployed would be compared with itself when the same pipeline is started again.
    """
    now = in_use(folder)
    if now is None:
        return OldModel("", None)
    entries = _entries(folder)
    judged = entries[-1].get("gates", {}).get(gate) if entries and entries[-1].get("package") == now.name else None
    if judged is not None and judged.get("model") == model:
        before = str(judged.get("old", ""))
        path = folder / before
        return OldModel(before, path if before and (path / _MANIFEST).is_file() else None)
    return OldModel(package_id(now), now)


def deploy(package: Path, folder: Path, gates: Mapping[str, Any], lineage: Mapping[str, Any]) -> Path:
    """Copy a package and point the link at it. Readers see the old one or the new one, whole. Three are kept."""
    name = package_id(package)
    if not name:
        raise StoreError(f"{package} is no package: it has no {_MANIFEST}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / name
        if package_id(target) != name:
            aside = folder / f".{name}.{os.getpid()}.tmp"
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(package, aside)
            shutil.rmtree(target, ignore_errors=True)
            os.rename(aside, target)
        write_json(folder / f"{name}.json", lineage)
        _log(folder, {"package": name, "at": round(time.time(), 3), "gates": dict(gates)})
        link = folder / f".{CURRENT}.{os.getpid()}.tmp"
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        os.replace(link, folder / CURRENT)
        sync_folder(folder)
        _remove_oldest(folder, name)
    except OSError as error:
        raise StoreError(f"{folder}: can't be deployed to: {error.strerror or error}") from error
    return target


def _entries(folder: Path) -> list[dict[str, Any]]:
    return [line.fields for line in read_lines(folder / _LOG, unsealed=False) if line.fields]


def _log(folder: Path, entry: Mapping[str, Any]) -> None:
    file = os.open(folder / _LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        append(file, sealed(entry))
        os.fsync(file)
    finally:
        os.close(file)


def _remove_oldest(folder: Path, now: str) -> None:
    names = list(dict.fromkeys(str(entry.get("package")) for entry in reversed(_entries(folder))))
    for name in [one for one in names if one != now][_KEPT - 1 :]:
        if (folder / name / _MANIFEST).is_file():
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / f"{name}.json").unlink(missing_ok=True)
    for left in folder.glob(".*.tmp"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
