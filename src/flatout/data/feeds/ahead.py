"""Several threads work ahead of the consumer, at most a few pieces, and deliver the pieces in order.

Nothing polls: threads sleep until there is room, the consumer until its piece is ready.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from flatout.base.errors import UsageError

Job = TypeVar("Job")
Made = TypeVar("Made")

THREAD_NAME = "flatout-ahead"
_EXIT_S = 5.0  # a thread may delay the end of the process by this


@dataclass(frozen=True)
class Counters:
    """The measurements for tuning. Seconds are sums since the start."""

    delivered: int = 0
    making_s: float = 0.0  # over all threads
    room_wait_s: float = 0.0  # over all threads: `depth` pieces were made and not yet taken
    wait_s: float = 0.0  # of the consumer: its piece was not ready

    def since(self, before: Counters) -> Counters:
        return Counters(
            self.delivered - before.delivered,
            self.making_s - before.making_s,
            self.room_wait_s - before.room_wait_s,
            self.wait_s - before.wait_s,
        )


class Ahead(Generic[Job, Made]):
    """Iterates over make(job) for each job, in order. An error is raised in place of its result, and again on later calls.

    At most `depth` pieces are begun and not yet taken, so at most `depth` threads have work at a time. Free threads take jobs
    one at a time, in order. Close it when done. The threads also stop when it is garbage collected.
    """

    def __init__(self, make: Callable[[Job], Made], jobs: Iterable[Job], depth: int, workers: int = 1) -> None:
        self._shared = _Shared(make, iter(jobs))
        self._forgotten = weakref.finalize(self, self._shared.stop)  # threads refer to the shared part only
        self._forgotten.atexit = False
        self._shared.resize(workers, depth)

    @property
    def workers(self) -> int:
        return self._shared.workers

    @property
    def depth(self) -> int:
        return self._shared.depth

    @property
    def counters(self) -> Counters:
        return self._shared.counters()

    def __iter__(self) -> Iterator[Made]:
        return self

    def __next__(self) -> Made:
        return self._shared.take()

    def resize(self, workers: int | None = None, depth: int | None = None) -> None:
        """Works while it runs. Surplus threads end after their current piece."""
        self._shared.resize(workers, depth)

    def close(self) -> None:
        """Stop the threads, wait until their current pieces are done, and drop all pieces."""
        self._shared.stop()
        self._shared.join()


@dataclass(frozen=True)
class _Failed:
    error: BaseException


class _Shared(Generic[Job, Made]):
    """Jobs by number: those below `taken` are delivered, those below `begun` are started, and there are none from `end` on."""

    def __init__(self, make: Callable[[Job], Made], jobs: Iterator[Job]) -> None:
        self.workers = self.depth = 1
        self._make, self._jobs = make, jobs
        # Reentrant: garbage collection may call `stop` inside of a thread that holds the lock
        self._lock = threading.RLock()
        self._ready, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._drawing = threading.Lock()  # held by the one thread that waits for room and takes a job
        self._threads: list[threading.Thread] = []
        self._live = 0
        self._results: dict[int, Made | _Failed] = {}
        self._begun = self._taken = 0
        self._end: int | None = None
        self._closed = False
        self._making, self._room_wait, self._wait = _Spent(), _Spent(), _Spent()

    def resize(self, workers: int | None, depth: int | None) -> None:
        for name, value in (("workers", workers), ("depth", depth)):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be 1 or more, got {value}")
        with self._lock:
            self.workers, self.depth = workers or self.workers, depth or self.depth
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            while self._live < self.workers and self._end is None and not self._closed:
                if self._live == 0:  # a thread in native code during interpreter shutdown would crash the process
                    atexit.register(self.end)
                thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
                thread.start()
                self._threads.append(thread)
                self._live += 1
            self._room.notify()

    def take(self) -> Made:
        with self._lock:
            number = self._taken
            if number not in self._results and self._may_come(number):
                began_s = self._wait.begin()
                try:
                    while number not in self._results and self._may_come(number):
                        self._ready.wait()
                finally:  # also when Ctrl-C ends the wait
                    self._wait.end(began_s)
            if number not in self._results:
                raise StopIteration
            result = self._results[number]
            if isinstance(result, _Failed):
                if isinstance(result.error, StopIteration):  # it would look like the end of the jobs
                    raise RuntimeError("a job raised StopIteration") from result.error
                raise result.error
            del self._results[number]
            self._taken += 1
            self._room.notify()
            return result

    def stop(self) -> None:
        with self._lock:
            self._closed = True
            self._results.clear()
            self._ready.notify_all()
            self._room.notify_all()

    def join(self, timeout_s: float | None = None) -> None:
        for thread in self._threads:
            thread.join(timeout_s)

    def end(self) -> None:
        self.stop()
        self.join(_EXIT_S)

    def counters(self) -> Counters:
        with self._lock:
            now_s = time.perf_counter()
            return Counters(self._taken, self._making.total(now_s), self._room_wait.total(now_s), self._wait.total(now_s))

    def _may_come(self, number: int) -> bool:
        return not self._closed and (self._end is None or number < self._end)

    def _work(self) -> None:
        while (drawn := self._draw()) is not None:
            number, job = drawn
            with self._lock:
                began_s = self._making.begin()
            result: Made | _Failed
            try:
                result = self._make(job)
            except BaseException as error:
                result = _Failed(error)
            with self._lock:
                self._making.end(began_s)
                self._put(number, result)
            del drawn, job, result  # keep no reference while waiting for room

    def _draw(self) -> tuple[int, Job] | None:
        """The next job and its number, once there is room for it. None if this thread must end."""
        with self._lock:
            began_s = self._room_wait.begin()
        with self._drawing:
            with self._lock:
                while self._goes_on() and self._begun - self._taken >= self.depth:
                    self._room.wait()
                self._room_wait.end(began_s)
                if not self._goes_on():
                    self._leave()
                    return None
            try:
                job = next(self._jobs)
            except BaseException as error:
                with self._lock:
                    if isinstance(error, StopIteration):
                        self._end_at(self._begun)
                    else:
                        self._put(self._begun, _Failed(error))
                    self._leave()
                return None
            with self._lock:
                self._begun += 1
                return self._begun - 1, job

    def _leave(self) -> None:
        self._live -= 1
        if self._live == 0:
            atexit.unregister(self.end)

    def _goes_on(self) -> bool:
        return self._may_come(self._begun) and self._live <= self.workers

    def _put(self, number: int, result: Made | _Failed) -> None:
        if self._closed:
            return
        self._results[number] = result
        if isinstance(result, _Failed):
            self._end_at(number + 1)
        if number == self._taken:
            self._ready.notify()

    def _end_at(self, number: int) -> None:
        self._end = number if self._end is None else min(self._end, number)
        self._ready.notify()
        self._room.notify()


class _Spent:
    """Seconds that threads spent on something, including those of threads that are still doing it."""

    def __init__(self) -> None:
        self._done_s = self._began_sum_s = 0.0
        self._at_it = 0

    def begin(self) -> float:
        now_s = time.perf_counter()
        self._at_it += 1
        self._began_sum_s += now_s
        return now_s

    def end(self, began_s: float) -> None:
        self._at_it -= 1
        self._began_sum_s -= began_s
        self._done_s += time.perf_counter() - began_s

    def total(self, now_s: float) -> float:
        return self._done_s + self._at_it * now_s - self._began_sum_s
