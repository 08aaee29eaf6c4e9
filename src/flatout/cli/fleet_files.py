"""What the commands that write manifests share: labels of nodes, and the file."""

from __future__ import annotations

import os
from pathlib import Path

from flatout.base.errors import StoreError, UsageError


def node_labels_of(written: list[str] | None) -> list[tuple[str, str]]:
    pairs = [one.partition("=") for one in written or []]
    for key, equals, value in pairs:
        if not equals:
            raise UsageError(f"--node-label must be key=value, got {key + equals + value!r}")
    return [(key, value) for key, _, value in pairs]


def write_manifest(path: Path, text: str) -> None:
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--out: folder not found: {path.resolve().parent}")
    if path.is_dir():
        raise UsageError(f"--out must be a file, but {path} is a folder")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {path}: {os.strerror(error.errno) if error.errno else error}") from error
