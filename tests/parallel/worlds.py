"""Real processes that train together, as a launcher would start them."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Protocol

import torch
import torch.distributed as dist

HERE = Path(__file__).parent
_FOLDER = tempfile.TemporaryDirectory()
PROBED = Path(_FOLDER.name)  # what is known of the machine: measuring it anew takes longer than most of the runs here


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
    path, given = str(HERE / script), [json.dumps(one) for one in asked]
    return _world(size, lambda told: _Forked(path, given, told))


def launched(size: int, arguments: list[str], more: Mapping[str, str] | None = None) -> AbstractContextManager[list[Started]]:
    """Python with these arguments in each process."""
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return _world(
        size, lambda told: subprocess.Popen([sys.executable, *arguments], env={**os.environ, **told, **(more or {})}, **piped)
    )


@contextmanager
def _world(size: int, start: Callable[[dict[str, str]], Started]) -> Iterator[list[Started]]:
    """The launcher keeps the store where they meet."""
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


class _Forked:
    """A script in a process that is forked off one which has only imported: importing takes longer than most of what is tested.

    To those who watch it, it is a `Popen`.
    """

    def __init__(self, path: str, given: list[str], told: dict[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        pipes = [context.Pipe(duplex=False) for _ in range(2)]
        self._process = context.Process(target=_run_script, args=(path, given, told, *(there for _, there in pipes)))
        self._process.start()
        for _, there in pipes:
            there.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(here.fileno())) for here, _ in pipes)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        with ThreadPoolExecutor(2) as readers:
            said = [readers.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            if is_late := bool(wait(said, timeout).not_done):
                self.kill()  # it will say no more, and the readers end
        assert not is_late, f"after {timeout} s it still ran, and had said: {[one.result() for one in said]}"
        self._process.join()
        return said[0].result(), said[1].result()

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode


def _run_script(path: str, given: list[str], told: dict[str, str], out: Connection, err: Connection) -> None:
    for number, pipe in ((1, out), (2, err)):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.environ.update(told)
    torch.set_num_threads(1)
    sys.argv = [path, *given]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


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
