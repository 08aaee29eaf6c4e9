"""One worker that runs a user's dataset code: a process, or a thread where a process is not possible.

It does one job at a time. A worker that hangs is stopped, one that dies is reported with the sample it was reading; the next
job gets a new worker in both cases.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from flatout.base.errors import DataError
from flatout.base.exits import exit_words
from flatout.data.workers.arena import ArenaLayout, WorkerMemory, open_memory
from flatout.data.workers.failures import Failure, SampleFailed, WorkerTraceback, own_line
from flatout.data.workers.nursery import WorkerProcess, can_start, start_worker
from flatout.data.workers.parcel import Parcel, Unpackable
from flatout.data.workers.seeding import borrowed_generators
from flatout.data.workers.worker import Answer, Broken, JobDone, Refused, Setup, Task, do

_START_S = 300.0
_END_S = 1.0
_TRACE_S = 0.2
_TRACE_BYTES = 1 << 16


class WontStart(Exception):
    """A worker process can't be started; the message says why."""


def packed(task: object, say: Callable[[str], None]) -> Parcel | None:
    """The task, packed for other processes; None if that is impossible, and `say` is called with the reason."""
    why = can_start()
    if why is None:
        try:
            return Parcel(task)
        except Unpackable as error:
            why = str(error)
    say(why)
    return None


class Worker(Protocol):
    def call(self, job: Any, samples: Callable[[], str]) -> tuple[Any, WorkerMemory]:
        """The task's reply, and the memory that holds its rows until the next call. `samples` names them in errors."""
        ...

    def close(self, at_once: bool = False) -> None: ...


def answered(answer: Answer) -> Any:
    if isinstance(answer, JobDone):
        return answer.reply
    if isinstance(answer, Failure):
        raise SampleFailed(answer)
    if isinstance(answer, Refused):
        raise DataError(answer.why)
    raise DataError(f"reading samples failed: {answer.trace.strip().splitlines()[-1]}") from WorkerTraceback(answer.trace)


def hung(number: int, timeout_s: float, where: str) -> DataError:
    return DataError(
        f"reading sample {number} took longer than {timeout_s:g} s; it is at {where}. If samples may take that long, raise "
        "timeout=; else find out what that line waits for"
    )


class ThreadWorker:
    """A thread of this process; with `borrows` it uses the process's random generators. One that hangs can't be ended."""

    def __init__(self, task: Task, layout: ArenaLayout, timeout_s: float, borrows: bool = False) -> None:
        self._task, self._layout, self._timeout_s, self._borrows = task, layout, timeout_s, borrows
        self._runner: _Runner | None = None

    def call(self, job: Any, samples: Callable[[], str]) -> tuple[Any, WorkerMemory]:
        with borrowed_generators() if self._borrows else contextlib.nullcontext():
            return self._call(job)

    def _call(self, job: Any) -> tuple[Any, WorkerMemory]:
        if self._runner is None:
            self._runner = _Runner(self._task, WorkerMemory.own(self._layout))
        memory = self._runner.memory
        patience = _Patience(memory, self._timeout_s)
        self._runner.jobs.put(job)
        while True:
            try:
                return answered(self._runner.answers.get(timeout=patience.look_again_s())), memory
            except queue.Empty:
                if patience.over():
                    where = self._runner.where()
                    self._runner.abandon()
                    self._runner = None
                    raise hung(memory.sample, self._timeout_s, where) from None

    def close(self, at_once: bool = False) -> None:
        self._runner = None


class _Runner:
    def __init__(self, task: Task, memory: WorkerMemory) -> None:
        self.memory = memory
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_run, args=(task, memory, self.jobs, self.answers), daemon=True)
        self._thread.name = "flatout-samples"
        self._thread.start()
        self._end = weakref.finalize(self, _end, self.jobs, self._thread)  # the thread holds no reference to self

    def abandon(self) -> None:
        """Stop waiting for a thread that hangs."""
        self._end.detach()
        self.jobs.put(None)

    def where(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return own_line(traceback.extract_stack(frame)) if frame is not None else "an unknown line"


def _end(jobs: queue.SimpleQueue[Any], thread: threading.Thread) -> None:
    """Waits for the thread: one that frees tensors while the interpreter shuts down crashes the process."""
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(_END_S)


def _run(task: Task, memory: WorkerMemory, jobs: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Answer]) -> None:
    while (job := jobs.get()) is not None:
        answers.put(do(task, job, memory))


class _Patience:
    """How long the current sample has taken."""

    def __init__(self, memory: WorkerMemory, timeout_s: float) -> None:
        self._memory, self._timeout_s = memory, timeout_s
        self._ticks, self._since_s = memory.ticks, time.monotonic()

    def look_again_s(self) -> float:
        return min(self._timeout_s / 8, 1.0)

    def over(self) -> bool:
        if self._memory.ticks != self._ticks:
            self._ticks, self._since_s = self._memory.ticks, time.monotonic()
        return time.monotonic() - self._since_s >= self._timeout_s


class ProcessWorker:
    """One process, started by the first call. Its memory is mapped here too, and stays when the process is replaced."""

    def __init__(
        self, parcel: Parcel, terms: Any, layout: ArenaLayout, timeout_s: float, number: int = 0, workers: int = 1
    ) -> None:
        self._parcel, self._terms, self._layout, self._timeout_s = parcel, terms, layout, timeout_s
        self._number, self._workers = number, workers
        self._shared, self._trace = open_memory(layout.size), open_memory(_TRACE_BYTES)
        for descriptor in (self._shared, self._trace):
            weakref.finalize(self, os.close, descriptor)
        self._memory = WorkerMemory.shared(layout, self._shared)
        self._process: WorkerProcess | None = None
        self._line: Connection[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns when the worker has unpacked its task. WontStart if it can't."""
        parcel, contents = self._parcel.sealed()
        self._line, theirs = Pipe()
        with theirs:
            try:
                self._process = start_worker([theirs.fileno(), self._shared, parcel, self._trace])
            except OSError as error:
                raise WontStart(str(error)) from error
        try:
            place = os.getcwd(), [os.path.abspath(folder) for folder in sys.path]
            self._line.send(Setup(contents, self._terms, self._layout, self._number, self._workers, *place))
            ready = self._line.recv() if self._line.poll(_START_S) else Broken(f"it did not answer within {_START_S:g} s")
        except (EOFError, OSError):
            ready = Broken(f"the process {self._ended()}")
        if isinstance(ready, Broken):
            self.close(at_once=True)
            raise WontStart(ready.trace.strip().splitlines()[-1]) from WorkerTraceback(ready.trace)

    def call(self, job: Any, samples: Callable[[], str]) -> tuple[Any, WorkerMemory]:
        if self._process is None:
            try:
                self.start()
            except WontStart as error:
                raise DataError(f"worker {self._number} can't be restarted: {error}") from error
        line = self._line
        assert line is not None
        patience = _Patience(self._memory, self._timeout_s)
        try:
            line.send(job)
            while not line.poll(patience.look_again_s()):
                if patience.over():
                    raise hung(self._memory.sample, self._timeout_s, self._where())
            return answered(line.recv()), self._memory
        except (EOFError, OSError) as error:
            raise self._died(samples) from error
        except DataError:
            self.close(at_once=True)
            raise

    def close(self, at_once: bool = False) -> None:
        """Ask the process to end, and kill it if it does not."""
        process, line = self._process, self._line
        if line is not None:
            if not at_once:
                with contextlib.suppress(OSError):  # it may have ended
                    line.send(None)
            if process is not None:
                process.wait(0 if at_once else _END_S)
                process.kill()
                process.wait(_END_S)
            line.close()
        self._process = self._line = None

    def kill(self) -> None:
        """May be called from any thread: the thread that waits for an answer sees the connection close."""
        if (process := self._process) is not None:
            process.kill()

    def _died(self, samples: Callable[[], str]) -> DataError:
        pid, number, how = self.pid, self._memory.sample, self._ended()
        self.close(at_once=True)
        memory = ""
        if "SIGKILL" in how:
            memory = " The system kills processes when memory runs out: set workers= to fewer."
        return DataError(
            f"worker {self._number} (process {pid}) {how} while reading sample {number}; its job was {samples()}.{memory}"
        )

    def _ended(self) -> str:
        code = None if self._process is None else self._process.wait(_END_S)
        return "closed its connection" if code is None else exit_words(code)

    def _where(self) -> str:
        """The innermost line of the process, which writes its stack trace when it gets SIGUSR1."""
        assert self._process is not None
        os.ftruncate(self._trace, 0)
        os.lseek(self._trace, 0, os.SEEK_SET)
        os.kill(self._process.pid, signal.SIGUSR1)
        time.sleep(_TRACE_S)
        return _innermost(os.pread(self._trace, _TRACE_BYTES, 0).decode(errors="replace"))


def _innermost(told: str) -> str:
    """From faulthandler's output: lines `File "...", line 3 in name`, the innermost first."""
    frames = []
    for line in reversed(told.splitlines()):
        if line.lstrip().startswith('File "') and '", line ' in line:
            name, _, rest = line.strip().removeprefix('File "').partition('", line ')
            number, _, function = rest.partition(" in ")
            frames.append(traceback.FrameSummary(name, int(number), function, lookup_line=False))
    return own_line(frames)
