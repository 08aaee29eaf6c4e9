"""The folder of a deploy stage: packages that are or were in use, a link to the one that is, and what led to each.

production/current            a link to the package in use
production/3f1c09ab52de/      a package, by the digest of its manifest
production/3f1c09ab52de.json  the stages that made it: data, code, plan, run, gate
production/deployed.jsonl     what was deployed when
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.sealed import read_lines
from flatout.pipelines.stages.resolved import CURRENT

LOG, MANIFEST = "deployed.jsonl", "manifest.json"


@dataclass(frozen=True)
class OldModel:
    """What a gate compares with. `identity` is empty if there is none; `path` is None if it is not there any more."""

    identity: str
    path: Path | None


def package_id(package: Path) -> str:
    """Of its manifest, which has the digests of all other files. Empty if this is no package."""
    import hashlib  # here: it takes a while to load

    try:
        return hashlib.sha256((package / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def in_use(folder: Path) -> Path | None:
    """The package that the link names, if it is there."""
    current = folder / CURRENT
    if not current.is_symlink():
        return None
    target = folder / os.readlink(current)
    return target if (target / MANIFEST).is_file() else None


def old_model(folder: Path, gate: str, model: str) -> OldModel:
    """What a gate compares with: the package in use; or, if that is the gate's own model, the one before it.

    Otherwise a model that was deployed would be compared with itself when the same pipeline is started again.
    """
    now = in_use(folder)
    if now is None:
        return OldModel("", None)
    entries = entries_of(folder)
    judged = entries[-1].get("gates", {}).get(gate) if entries and entries[-1].get("package") == now.name else None
    if judged is not None and judged.get("model") == model:
        before = str(judged.get("old", ""))
        path = folder / before
        return OldModel(before, path if before and (path / MANIFEST).is_file() else None)
    return OldModel(package_id(now), now)


def entries_of(folder: Path) -> list[dict[str, Any]]:
    return [line.fields for line in read_lines(folder / LOG, unsealed=False) if line.fields]
