"""Starts worker processes. Never as a fork of this process: torch may have run in it, and a fork does not have its threads.

On Linux a template process imports once what workers need and forks each worker in milliseconds: it has one thread and has
computed nothing. Elsewhere every worker is a new interpreter. Both end when this process ends, with all processes they started.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # imported only when there are workers
    from flatout.base.fork_server import ForkServer

# Runs before anything is imported. Signals to all processes of a job are meant for the process that started us: it may want to
# save first and needs its workers for that. Workers end when it ends.
_BOOT = (
    "import os, signal, sys; [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]; "
    "os.environ['OMP_NUM_THREADS'] = '1'; "
    "sys.path[:] = {path!r}; from {module} import {function}; {function}({arguments})"
)


class WorkerProcess(Protocol):
    """A worker process, forked or spawned."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None while it runs. 0 also when the exit code can't be known any more."""
        ...


def start_worker(descriptors: Sequence[int], forked: bool | None = None) -> WorkerProcess:
    """A process that runs `worker.work` on its copies of the four descriptors."""
    if forked is None:
        forked = sys.platform == "linux"
    return _forked(descriptors) if forked else _Spawned(descriptors)


def prepare(*modules: str) -> None:
    """Start the template process, if there is none. It imports `modules`, so that workers need not."""
    if sys.platform == "linux":
        _template(modules)


def can_start() -> str | None:
    """None, or why workers can't be started on this system."""
    return None if os.name == "posix" else f"worker processes are not supported on {sys.platform} yet"


def _command(module: str, function: str, *arguments: int | str) -> list[str]:
    path = [os.path.abspath(place) for place in sys.path]
    given = ", ".join(map(repr, arguments))
    code = _BOOT.format(path=path, module=f"flatout.data.workers.{module}", function=function, arguments=given)
    return [sys.executable, "-c", code]


class _Spawned:
    def __init__(self, descriptors: Sequence[int]) -> None:
        from flatout.base.child import Child, Printed

        command = _command("worker", "work", *descriptors)
        self._child = Child(command, passed=descriptors, output=Printed.SHOWN, errors=Printed.SHOWN)

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        self._child.signal(signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        return self._child.wait(seconds)


class _Forked:
    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None
        self._waiting = threading.Lock()  # the server reports an exit code once

    def kill(self) -> None:
        self._server.signal(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        with self._waiting:
            if self._code is None:
                try:
                    self._code = self._server.wait_for_end(self.pid, seconds)
                except OSError:  # the template has ended
                    self._code = 0
            return self._code


def _forked(descriptors: Sequence[int]) -> WorkerProcess:
    server = _template()
    try:
        return _Forked(server, server.start({}, descriptors))
    except OSError as gone:
        raise OSError(f"the process that forks workers {gone}") from None


_starting = threading.Lock()
_current: tuple[int, ForkServer] | None = None  # (process that started it, template)


def _template(modules: Sequence[str] = ()) -> ForkServer:
    from flatout.base.fork_server import ForkServer

    global _current
    with _starting:
        if _current is None or _current[0] != os.getpid() or not _current[1].is_alive():
            _current = os.getpid(), ForkServer.booted(lambda line: _boot(line, modules))
        return _current[1]


def _boot(line: int, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Needs no keeper process: the template ends its workers when this process ends."""
    command = _command("nursery", "be_template", line, *modules)
    return subprocess.Popen(command, pass_fds=[line], stdin=subprocess.DEVNULL)


def be_template(line: int, *modules: str) -> None:
    from flatout.base.fork_server import serve_forks
    from flatout.data.workers.worker import warm_up, work

    for module in modules:
        importlib.import_module(module)
    warm_up()

    def be_worker(_: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        work(*descriptors)
        return 1

    gc.collect()
    gc.freeze()  # garbage collection in a worker would write to every object, and so copy all shared pages
    serve_forks(line, be_worker)
    os._exit(0)
