"""The libraries of the extra `serve`, loaded when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from flatout.base.errors import MissingExtra


def http_library(name: str) -> Any:
    """uvloop or httptools."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(name, "serve", "flatout load") from error
