"""Real processes that train together, as a launcher would start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Protocol

import torch.distributed as dist
from interpreters import ForkedPython, piped
from known_machine import keep_ceilings

HERE = Path(__file__).parent
_FOLDER = tempfile.TemporaryDirectory()
PROBED = Path(_FOLDER.name)  # what is known of the machine


class Started(Protocol):
    """What is asked of a process here: a `Popen` has it."""

    stdout: IO[str] | None
    stderr: IO[str] | None

    @property
    def returncode(self) -> int | None: ...

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int | None: ...


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def started(size: int, script: str, *asked: Any) -> AbstractContextManager[list[Started]]:
    """`script` of this folder in each process, with what is asked as JSON."""
    arguments = [str(HERE / script), *(json.dumps(one) for one in asked)]
    return _world(size, lambda told: _forked(arguments, told))


def commanded(size: int, arguments: list[str], more: Mapping[str, str]) -> AbstractContextManager[list[Started]]:
    """Python with these arguments in each process."""
    return _world(size, lambda told: _forked(arguments, {**told, **more}))


def launched(size: int, arguments: list[str], more: Mapping[str, str] | None = None) -> AbstractContextManager[list[Started]]:
    """The same, in interpreters that are started for it."""
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return _world(
        size, lambda told: subprocess.Popen([sys.executable, *arguments], env={**os.environ, **told, **(more or {})}, **piped)
    )


def _forked(arguments: list[str], told: Mapping[str, str]) -> ForkedPython:
    return piped(arguments, env={**os.environ, **told, "PYTHONUNBUFFERED": "1"})


@contextmanager
def _world(size: int, start: Callable[[dict[str, str]], Started]) -> Iterator[list[Started]]:
    """The launcher keeps the store where they meet; the machine counts as measured."""
    keep_ceilings(PROBED)
    made: Any = dist
    store = made.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    processes = []
    for rank in range(size):
        told = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "localhost",
            "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0,
            "OMP_NUM_THREADS": 1, "PROBED": PROBED,
        }  # fmt: skip
        processes.append(start({name: str(value) for name, value in told.items()}))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def ended(processes: Sequence[Started], timeout_s: float = 150) -> list[Ended]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=timeout_s)
        assert process.returncode is not None
        found.append(Ended(process.returncode, out, err))
    return found


def together(size: int, script: str, *asked: Any) -> list[Ended]:
    with started(size, script, *asked) as processes:
        return ended(processes)
