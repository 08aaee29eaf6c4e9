"""Where worker processes come from. Never a fork of this process: torch may have run in it, and forked threads don't live.

On Linux a template process imports torch once and forks each worker off in milliseconds: it has one thread and has computed
nothing. Elsewhere every worker is a new interpreter. Both end when this process is gone, with all that they have started.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # else loaded when there are workers
    from flatout.base.fork_server import ForkServer

# Before anything is imported. Signals that go to all processes of a job are for the one that started us: it may want to save
# what it has, and needs its workers for that. We end when it does.
_BOOT = (
    "import os, signal, sys; [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]; "
    "os.environ['OMP_NUM_THREADS'] = '1'; "
    "sys.path[:] = {path!r}; from {module} import {function}; {function}({arguments})"
)


class WorkerProcess(Protocol):
    """A worker, however it was started."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; None when it still runs. 0 as well when nobody knows any more."""
        ...


def start_worker(descriptors: Sequence[int], forked: bool | None = None) -> WorkerProcess:
    """A process that runs `worker.work` on its copies of the four descriptors."""
    if forked is None:
        forked = sys.platform == "linux"
    return _forked(descriptors) if forked else _Spawned(descriptors)


def prepare() -> None:
    """Have the template there before the first worker, so that it also outlives the last one."""
    if sys.platform == "linux":
        _template()


def can_start() -> str | None:
    """None, or why this system has no way to start workers."""
    return None if os.name == "posix" else f"worker processes are not there yet on {sys.platform}"


def _command(module: str, function: str, descriptors: Sequence[int]) -> list[str]:
    arguments = ", ".join(map(str, descriptors))
    path = [os.path.abspath(place) for place in sys.path]
    code = _BOOT.format(path=path, module=f"flatout.data.workers.{module}", function=function, arguments=arguments)
    return [sys.executable, "-c", code]


class _Spawned:
    def __init__(self, descriptors: Sequence[int]) -> None:
        from flatout.base.child import Child, Printed

        command = _command("worker", "work", descriptors)
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
        self._waiting = threading.Lock()  # its end is told once

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
_current: tuple[int, ForkServer] | None = None  # and the process that it belongs to


def _template() -> ForkServer:
    from flatout.base.fork_server import ForkServer

    global _current
    with _starting:
        if _current is None or _current[0] != os.getpid() or not _current[1].is_alive():
            _current = os.getpid(), ForkServer.booted(_boot)
        return _current[1]


def _boot(line: int) -> subprocess.Popen[bytes]:
    """Without a keeper: it ends its workers itself when this process is gone."""
    return subprocess.Popen(_command("nursery", "nurse", [line]), pass_fds=[line], stdin=subprocess.DEVNULL)


def nurse(line: int) -> None:
    """The template's life."""
    from flatout.base.fork_server import serve_forks
    from flatout.data.workers.worker import work

    def be_worker(_: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        work(*descriptors)
        return 1

    gc.collect()
    gc.freeze()  # the collector would write to every object, and so copy the pages that are shared with the workers
    serve_forks(line, be_worker)
    os._exit(0)
