"""Where things are on this person's machine: the one place that reads environment variables."""

from __future__ import annotations

import os
import warnings
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


def process_rank() -> int:
    """Of this process among those that torchrun and its like started; 0 where it is alone."""
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


def world_size() -> int:
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def quiet_torch() -> None:
    """Its warning about a CPU without bf16 instructions has 20 lines of C++ stack, and the plan says how slow that is."""
    from flatout.machine.rates import NO_SUCH_KERNEL

    warnings.filterwarnings("ignore", message=NO_SUCH_KERNEL)


def quiet_profiler() -> None:
    """Its library says on stderr when it starts and stops; read when it is loaded."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
