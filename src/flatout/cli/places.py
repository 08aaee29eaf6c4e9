"""Where things are on this person's machine: the one place that reads environment variables."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Measured ceilings are kept here: $FLATOUT_CACHE, else below $XDG_CACHE_HOME, else ~/.cache."""
    if own := os.environ.get("FLATOUT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flatout"


def ray_address() -> str | None:
    """Of the cluster for `--on ray`: host:port or auto on a node of it, http://host:8265 from elsewhere."""
    return os.environ.get("RAY_ADDRESS") or None


def allow_deterministic_cuda() -> None:
    """cuBLAS reads this when it starts; without it torch refuses deterministic matrix products on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
