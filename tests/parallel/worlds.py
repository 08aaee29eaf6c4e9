"""Real processes that train together, as a launcher would start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def started(size: int, script: str, *asked: Any, restarts: int = 0) -> AbstractContextManager[list[subprocess.Popen[str]]]:
    """`script` of this folder in each process, with what is asked as JSON."""
    return launched(size, [str(HERE / script), *(json.dumps(one) for one in asked)], restarts=restarts)


@contextmanager
def launched(
    size: int, arguments: list[str], more: Mapping[str, str] | None = None, *, restarts: int = 0
) -> Iterator[list[subprocess.Popen[str]]]:
    """Python with these arguments in each process. The launcher keeps the store where they meet."""
    torch: Any = dist
    store = torch.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    command = [sys.executable, *arguments]
    processes = []
    for rank in range(size):
        told = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "localhost",
            "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": restarts,
            "OMP_NUM_THREADS": 1,
        }  # fmt: skip
        environment = {**os.environ, **{name: str(value) for name, value in told.items()}, **(more or {})}
        piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=environment, **piped))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def ended(processes: list[subprocess.Popen[str]], timeout_s: float = 100) -> list[Ended]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=timeout_s)
        found.append(Ended(process.returncode, out, err))
    return found


def together(size: int, script: str, *asked: Any) -> list[Ended]:
    with started(size, script, *asked) as processes:
        return ended(processes)
