"""Files that are either complete or absent: written to a temporary name, synced, renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes, before_naming: Callable[[], None] = lambda: None) -> None:
    """`before_naming` is called when the content is synced to disk, before the rename replaces `path`."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        before_naming()
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=2, default=str) + "\n").encode()


def read_json(path: Path) -> Any:
    return parse_json(path.read_bytes())


def parse_json(content: bytes) -> Any:
    """Raises ValueError for anything that is not JSON, and for too deep nesting."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sync_folder(folder: Path) -> None:
    """A rename is durable only after its folder is synced."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
