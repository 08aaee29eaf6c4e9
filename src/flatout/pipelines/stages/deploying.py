"""Put a package in use: copied whole, then the link is pointed at it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.files import sync_folder, write_json
from flatout.base.sealed import append, sealed
from flatout.pipelines.stages.deployed import LOG, MANIFEST, entries_of, package_id
from flatout.pipelines.stages.resolved import CURRENT

_KEPT = 3


def deploy(package: Path, folder: Path, gates: Mapping[str, Any], lineage: Mapping[str, Any]) -> Path:
    """Copy a package and point the link at it. Readers see the old one or the new one, whole. Three are kept."""
    name = package_id(package)
    if not name:
        raise StoreError(f"{package} is no package: it has no {MANIFEST}")
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


def _log(folder: Path, entry: Mapping[str, Any]) -> None:
    file = os.open(folder / LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        append(file, sealed(entry))
        os.fsync(file)
    finally:
        os.close(file)


def _remove_oldest(folder: Path, now: str) -> None:
    names = list(dict.fromkeys(str(entry.get("package")) for entry in reversed(entries_of(folder))))
    for name in [one for one in names if one != now][_KEPT - 1 :]:
        if (folder / name / MANIFEST).is_file():
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / f"{name}.json").unlink(missing_ok=True)
    for left in folder.glob(".*.tmp"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
