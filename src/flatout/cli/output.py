"""Output of commands: strict JSON on stdout for programs, and HTML pages."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError, UsageError


def print_json(content: Any) -> None:
    print(json.dumps(_strict(content), indent=2, default=str, allow_nan=False))


def check_page_path(path: Path, option: str = "--html") -> None:
    try:
        if path.is_dir():
            raise UsageError(f"{option} must be a file, but {path} is a folder: {option} {path / 'plan.html'}")
        if not path.resolve().parent.is_dir():
            raise UsageError(f"{option}: folder not found: {path.resolve().parent}")
    except OSError as error:  # the name is too long, or links form a loop
        raise UsageError(f"{option}: {path} can't be written: {error.strerror}") from error


def write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {path}: {os.strerror(error.errno) if error.errno else error}") from error


def _strict(value: Any) -> Any:
    """JSON has no NaN and no infinity: a metric without a value is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return value
