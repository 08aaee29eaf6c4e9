"""Work done ahead of its use, by one thread, at most a few pieces ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Job = TypeVar("Job")
Made = TypeVar("Made")

_POLL_S = 0.05


@dataclass(frozen=True)
class _End:
    error: BaseException | None


class Ahead(Generic[Job, Made]):
    """Iterates over make(job) for each job. An error in the thread is raised where its result would have come."""

    def __init__(self, make: Callable[[Job], Made], jobs: Iterable[Job], depth: int) -> None:
        self._make = make
        self._jobs = jobs
        self._ready: queue.Queue[Made | _End] = queue.Queue(maxsize=depth)
        self._closing = threading.Event()
        self._end: _End | None = None
        self._thread = threading.Thread(target=self._work, name="flatout-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Made]:
        return self

    def __next__(self) -> Made:
        if self._end is None:
            item = self._ready.get()
            if not isinstance(item, _End):
                return item
            self._end = item
        if self._end.error is not None:
            raise self._end.error
        raise StopIteration

    def close(self) -> None:
        """Stop the thread and wait until it has; what it had made is dropped."""
        self._closing.set()
        self._thread.join()
        self._end = self._end or _End(None)

    def _work(self) -> None:
        end = _End(None)
        try:
            for job in self._jobs:
                if not self._hand_over(self._make(job)):
                    return
        except BaseException as error:
            end = _End(error)
        self._hand_over(end)

    def _hand_over(self, item: Made | _End) -> bool:
        while not self._closing.is_set():
            try:
                self._ready.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False
