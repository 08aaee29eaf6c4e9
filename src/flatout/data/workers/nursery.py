"""Where worker processes come from. Never a fork of this process: torch may have run in it, and forked threads don't live.

On Linux a template process imports torch once and forks each worker off in milliseconds: it has one thread and has computed
nothing. Elsewhere every worker is a new interpreter. Both end by themselves when this process is gone.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

_ASK = struct.Struct("<cq")
_ANSWER = struct.Struct("<q")
_STILL_RUNS = -1
_DESCRIPTORS = 4
_POLL_S = 0.02

# Before anything is imported. Signals that go to all processes of a job are for the one that started us: it may want to save
# what it has, and needs its workers for that. We end when it does.
_BOOT = (
    "import os, signal, sys; [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]; "
    "os.environ['OMP_NUM_THREADS'] = '1'; "
    "sys.path[:] = {path!r}; from {module} import {function}; {function}({arguments})"
)


class Process(Protocol):
    """A worker, however it was started."""

    pid: int

    def kill(self) -> None: ...

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; None when it still runs. 0 as well when nobody knows any more."""
        ...


def start_worker(descriptors: Sequence[int], forked: bool | None = None) -> Process:
    """A process that runs `worker.work` on its copies of the four descriptors."""
    if forked is None:
        forked = sys.platform == "linux"
    return _nursery().fork(descriptors) if forked else _Spawned(_boot("worker", "work", descriptors))


def prepare() -> None:
    """Have the template there before the first worker, so that it also outlives the last one."""
    if sys.platform == "linux":
        _nursery()


def can_start() -> str | None:
    """None, or why this system has no way to start workers."""
    return None if os.name == "posix" else f"worker processes are not there yet on {sys.platform}"


def _boot(module: str, function: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    arguments = ", ".join(map(str, descriptors))
    path = [os.path.abspath(place) for place in sys.path]
    code = _BOOT.format(path=path, module=f"flatout.data.workers.{module}", function=function, arguments=arguments)
    return subprocess.Popen([sys.executable, "-c", code], pass_fds=tuple(descriptors), stdin=subprocess.DEVNULL)


class _Spawned:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class _Forked:
    def __init__(self, nursery: _Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._code: int | None = None

    def kill(self) -> None:
        if self.wait(0) is None:  # until the template has been asked about its end, the number can't be another process's
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        pause = threading.Event()
        while self._code is None:
            self._code = self._nursery.exit_code(self.pid)
            if self._code is None:
                if seconds <= 0:
                    return None
                pause.wait(min(_POLL_S, seconds))
                seconds -= _POLL_S
        return self._code


class _Nursery:
    """The template process, and the one line to it: one question at a time."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = _boot("nursery", "nurse", [theirs.fileno()])
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, self._line, self._process)

    def alive(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def fork(self, descriptors: Sequence[int]) -> Process:
        pid = self._ask(lambda: socket.send_fds(self._line, [_ASK.pack(b"f", 0)], list(descriptors)))
        if pid is None:
            raise OSError(f"the process that forks workers has ended with code {self._process.wait(5)}")
        return _Forked(self, pid)

    def exit_code(self, pid: int) -> int | None:
        code = self._ask(lambda: self._line.send(_ASK.pack(b"w", pid)))
        if code is None:
            return 0
        return None if code == _STILL_RUNS else os.waitstatus_to_exitcode(code)

    def _ask(self, send: Callable[[], object]) -> int | None:
        with self._lock:
            try:
                send()
                answer = self._line.recv(_ANSWER.size, socket.MSG_WAITALL)
            except OSError:
                return None
        return _ANSWER.unpack(answer)[0] if len(answer) == _ANSWER.size else None


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_starting = threading.Lock()
_current: _Nursery | None = None


def _nursery() -> _Nursery:
    global _current
    with _starting:
        if _current is None or not _current.alive():
            _current = _Nursery()
        return _current


def nurse(descriptor: int) -> None:
    """The template's life: fork when asked, tell exit codes when asked, end when the line is closed."""
    from flatout.data.workers.worker import work

    gc.collect()
    gc.freeze()  # the collector would write to every object, and so copy the pages that are shared with the workers
    line = socket.socket(fileno=descriptor)
    while True:
        asked, descriptors, _, _ = socket.recv_fds(line, _ASK.size, _DESCRIPTORS)
        if not asked:
            os._exit(0)
        what, number = _ASK.unpack(asked)
        if what == b"w":
            pid, status = os.waitpid(number, os.WNOHANG)
            line.send(_ANSWER.pack(status if pid else _STILL_RUNS))
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            work(*descriptors)
        for passed in descriptors:
            os.close(passed)
        line.send(_ANSWER.pack(pid))
