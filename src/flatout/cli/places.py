"""Where things are on this machine: the only module that reads environment variables."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flatout.base.errors import UsageError

COMPLETING = "_FLATOUT_COMPLETE"  # which the script of a shell sets


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


def local_processes() -> int:
    """How many processes of this run are on this machine."""
    size = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(size)) if size.isdigit() else 1


def torchrun_store() -> tuple[str, int, str]:
    """Host and port of the store that torchrun keeps for its processes, and the name of this start."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise UsageError(
            f"WORLD_SIZE is {world_size()}, but torchrun did not start this process: expected "
            "torchrun --nproc-per-node N -m flatout boost SCRIPT, or a single process"
        )
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return host, int(port), f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {start}"


@contextmanager
def environment_of_one_process() -> Iterator[None]:
    """As if torchrun had started one process; its group gets a free port each time that it is made."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("TORCHELASTIC_")]:
        del os.environ[name]
    os.environ.update(dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0"))
    os.environ.update(dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1"))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def is_completing() -> bool:
    """Whether a shell asks how the words typed so far can go on."""
    return COMPLETING in os.environ


def quiet_torch() -> None:
    """Silence a warning about CPUs without bf16 instructions: it prints 20 lines of C++ stack, and the plan shows the speed."""
    from flatout.machine.rates import NO_SUCH_KERNEL

    warnings.filterwarnings("ignore", message=NO_SUCH_KERNEL)


def quiet_profiler() -> None:
    """Silence the profiler library's start and stop messages; it reads this when it is loaded."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
