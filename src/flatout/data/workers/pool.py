"""Several workers behind one queue: each job goes to the next free worker."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.base.errors import DataError
from flatout.data.workers.arena import WorkerMemory
from flatout.data.workers.watched import ProcessWorker, Worker

_END_S = 1.0


@dataclass
class _Group:
    """The jobs of one `Pool.run`."""

    left: int
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    errors: dict[int, BaseException] = field(default_factory=dict)

    def finish(self, place: int, error: BaseException | None = None) -> None:
        with self.lock:
            if error is not None:
                self.errors[place] = error
            self.left -= 1
            if self.left == 0:
                self.done.set()


@dataclass(frozen=True)
class Errand:
    """A job; `take` is called with the reply while the worker's memory still holds the rows; `samples` names them in errors."""

    job: Any
    take: Callable[[Any, WorkerMemory], None]
    samples: Callable[[], str]


class Pool:
    """`make(number, of)` makes a worker. Any thread may call `run`. Call `close` when done."""

    def __init__(self, make: Callable[[int, int], Worker], workers: int) -> None:
        self._shared = _Shared(make)
        self.close = weakref.finalize(self, self._shared.close)  # also when it is garbage collected, and at exit
        self.resize(workers)

    @property
    def workers(self) -> int:
        return self._shared.wanted

    def resize(self, workers: int) -> None:
        """May be called while jobs run. A worker that is not needed any more ends after its current job."""
        self._shared.resize(workers)

    def run(self, errands: Sequence[Errand]) -> None:
        """Do all of them, in any order. If some fail, raises the error of the first one in `errands`."""
        group = _Group(len(errands))
        if not errands:
            return
        for place, errand in enumerate(errands):
            self._shared.queue.put((errand, group, place))
        if self._shared.closed:
            self._shared.empty()
        group.done.wait()
        if group.errors:
            raise group.errors[min(group.errors)]


class _Shared:
    """State of the pool's threads, one per worker. They hold no reference to the pool, so that an unused pool is closed by
    garbage collection.
    """

    def __init__(self, make: Callable[[int, int], Worker]) -> None:
        self.queue: queue.SimpleQueue[tuple[Errand, _Group, int] | None] = queue.SimpleQueue()
        self.wanted = 0
        self.closed = False
        self._make = make
        self._lock = threading.Lock()
        self._workers: dict[threading.Thread, Worker] = {}
        self._made = 0

    def resize(self, workers: int) -> None:
        with self._lock:
            while self.wanted < workers and not self.closed:
                worker = self._make(self._made, workers)
                thread = threading.Thread(target=self._drive, args=(worker,), name="flatout-worker", daemon=True)
                self._workers[thread] = worker
                self._made += 1
                self.wanted += 1
                thread.start()
            while self.wanted > workers:
                self.wanted -= 1
                self.queue.put(None)

    def close(self) -> None:
        self.closed = True
        self.resize(0)
        until_s = time.monotonic() + _END_S
        threads = list(self._workers)
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        for worker in list(self._workers.values()):
            if isinstance(worker, ProcessWorker):
                worker.kill()
        for thread in threads:
            if isinstance(self._workers.get(thread), ProcessWorker):
                thread.join(_END_S)
        self.empty()

    def empty(self) -> None:
        """Fail all jobs that are left in the queue."""
        while True:
            try:
                item = self.queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                _, group, place = item
                group.finish(place, DataError("the workers were closed while samples were being read"))

    def _drive(self, worker: Worker) -> None:
        while (item := self.queue.get()) is not None:
            errand, group, place = item
            error: BaseException | None = None
            try:
                if not self.closed:
                    errand.take(*worker.call(errand.job, errand.samples))
            except BaseException as raised:
                error = raised
            if self.closed and error is None:
                error = DataError("the workers were closed while samples were being read")
            group.finish(place, error)
            del errand, group, item, error  # free memory while the thread waits
        worker.close()
        with self._lock:
            self._workers.pop(threading.current_thread(), None)
