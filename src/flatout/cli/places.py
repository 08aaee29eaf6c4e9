"""Where things are on this machine: the only module that reads environment variables."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from flatout.base.errors import UsageError


def cache_folder() -> Path:
    """Folder for measured results: $FLATOUT_CACHE, else below $XDG_CACHE_HOME, else ~/.cache."""
    if own := os.environ.get("FLATOUT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flatout"


def price_per_hour() -> float | None:
    """USD per hour of this machine, as whoever rents it sets $FLATOUT_PRICE_PER_HOUR; a recipe's own price comes first."""
    written = os.environ.get("FLATOUT_PRICE_PER_HOUR")
    if not written:
        return None
    try:
        found = float(written)
    except ValueError:
        found = -1.0
    if not 0 < found < 1e9:
        raise UsageError(f"FLATOUT_PRICE_PER_HOUR must be USD per hour, such as 3.5; got {written!r}")
    return found


def ray_address() -> str | None:
    """Address of the cluster for `--on ray`: host:port or auto on one of its nodes, http://host:8265 from elsewhere."""
    return os.environ.get("RAY_ADDRESS") or None


def allow_deterministic_cuda() -> None:
    """cuBLAS reads this when it starts; without it torch refuses deterministic matrix products on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def process_rank() -> int:
    """Rank of this process as set by torchrun or similar; 0 for a single process."""
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


def world_size() -> int:
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def is_completing() -> bool:
    """Whether a shell asks how the words typed so far can go on."""
    from flatout.cli.completion import VARIABLE

    return VARIABLE in os.environ


def quiet_torch() -> None:
    """Silence a warning about CPUs without bf16 instructions: it prints 20 lines of C++ stack, and the plan shows the speed."""
    from flatout.machine.rates import NO_SUCH_KERNEL

    warnings.filterwarnings("ignore", message=NO_SUCH_KERNEL)


def quiet_profiler() -> None:
    """Silence the profiler library's start and stop messages; it reads this when it is loaded."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
