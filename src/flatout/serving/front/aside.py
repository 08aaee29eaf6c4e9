"""Work beside the event loop: a few threads, which are replaced if a job does not end in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

_MOST_STUCK = 64  # threads of jobs that never ended


class TookTooLong(Exception):
    pass


class _Job:
    __slots__ = ("begun", "done", "ended", "loop", "timer", "work")

    def __init__(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.work, self.done = work, done
        self.loop = asyncio.get_running_loop()
        self.begun = self.ended = False
        self.timer: asyncio.TimerHandle | None = None

    def end(self, result: Any, error: Exception | None) -> None:
        """In the event loop, once: by the thread that ran it, or by the time limit."""
        if self.ended:
            return
        self.ended = True
        if self.timer is not None:
            self.timer.cancel()
        self.done(result, error)


class AsideThreads:
    """Daemon threads: a job that never ends does not keep the process alive."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads = name, threads
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._stuck = 0
        self._started = 0

    def run(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None], limit_s: float | None = None) -> None:
        """`done` gets the result or the error, in the event loop. TookTooLong after `limit_s`, in the queue or in the work."""
        job = _Job(work, done)
        if limit_s is not None:
            job.timer = job.loop.call_later(limit_s, self._late, job)
        if self._started < self._threads:
            self._start()
        self._jobs.put(job)

    def _start(self) -> None:
        self._started += 1
        threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()

    def _late(self, job: _Job) -> None:
        if not job.ended:
            if job.begun and self._stuck < _MOST_STUCK:
                self._stuck += 1
                self._start()
            job.end(None, TookTooLong())

    def _came_back(self) -> None:
        self._stuck -= 1

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if job.ended:  # its time was over before a thread was free
                continue
            job.begun = True
            result, error = None, None
            try:
                result = job.work()
            except Exception as raised:
                error = raised
            late = job.ended
            try:
                job.loop.call_soon_threadsafe(self._came_back if late else partial(job.end, result, error))
            except RuntimeError:  # the loop is closed: the process ends
                return
            if late:  # another thread has taken this one's place
                return
