"""Real processes that talk through Gloo, for tests: a function of an importable module runs on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(size: int, function: Callable[..., Any], *given: Any, folder: Path) -> list[Any]:
    """What each rank's call gave, by rank. An exception on one ends them all and is raised here, with its traceback."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.start_processes(_rank, (size, store.port, function, given, str(folder)), nprocs=size, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _rank(rank: int, size: int, port: int, function: Callable[..., Any], given: tuple[Any, ...], folder: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    try:
        torch.save(function(*given), Path(folder) / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
