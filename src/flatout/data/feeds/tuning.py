"""A `Tuner` sets how many threads read and how far ahead, while the pipe runs, and explains each change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from flatout.base.units import show_count
from flatout.data.feeds.ahead import Counters

SPARE = 2  # batches beyond those being read: one on its way to the device, one ready
_HEADROOM = 1.1  # reading times vary: with exactly equal rates the consumer waits half of the time


@dataclass(frozen=True)
class ReadingBudget:
    """The cores and the memory that reading may use."""

    cores: int
    memory_bytes: int

    @classmethod
    def here(cls) -> ReadingBudget:
        """The cores of this process, and a quarter of the free memory."""
        import psutil

        from flatout.machine import host

        cores = min(host.affinity_cores(), host.cgroup_cores() or math.inf)
        free_bytes = min(psutil.virtual_memory().available, host.cgroup_memory_bytes() or math.inf)
        return cls(max(1, int(cores)), int(free_bytes / 4))

    @property
    def threads(self) -> int:
        """One core is left for the training thread."""
        return max(1, self.cores - 1)

    def most(self, consumer_busy: float) -> int:
        """The largest number of threads: one more if the consumer leaves its core idle most of the time."""
        return self.cores if consumer_busy < 0.5 else self.threads

    def batches(self, batch_bytes: float) -> int:
        """How many batches fit in memory; at least as many as are needed to read one while another is used."""
        return max(1 + SPARE, int(self.memory_bytes / max(1.0, batch_bytes)))


def depth_for(workers: int, pieces: int = 1, room: float = math.inf) -> int:
    """How many pieces may be begun and not yet taken, if a batch is read in `pieces` pieces."""
    return int(min(room, workers + SPARE * pieces))


class Pipe(Protocol):
    """The tuned object: an `Ahead`, or a simulation of one."""

    @property
    def workers(self) -> int: ...

    @property
    def depth(self) -> int: ...

    @property
    def counters(self) -> Counters: ...

    def resize(self, workers: int | None = None, depth: int | None = None) -> None: ...


@dataclass(frozen=True)
class Change:
    when_s: float  # since the tuner was made
    what: str
    why: str


class Tuner:
    """Checks a pipe twice a second, inside of the consumer's calls.

    It adds threads at once if the consumer waits and every thread is busy, and removes them if nothing became faster. It
    removes idle threads only after a long time. After each change that did not help, the time until the next try doubles, so
    the numbers settle.
    """

    EVERY_S = 0.5
    LONGEST_LOOK_S = 5.0
    WAITS = 0.05  # share of the time: above this, reading slows down the consumer
    BUSY = 0.7  # share of the threads' time
    IDLE_LOOKS = 20
    RETRY_S = 30.0

    def __init__(
        self,
        budget: ReadingBudget,
        batch_bytes: float,
        pieces: int = 1,
        *,
        depth: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        work: Callable[[], float] = time.thread_time,
    ) -> None:
        """`pieces`: the pipe delivers a batch in this many pieces, and its depth counts pieces. `depth`: a fixed depth. `work`:
        CPU seconds of the consumer's thread, which is the thread that calls `look`."""
        self.history: list[Change] = []
        self._budget = budget
        self._pieces = pieces
        self._depth = depth
        self._room = budget.batches(batch_bytes) * pieces
        self._clock, self._work, self._worked_s = clock, work, work()
        self._began_s = self._looked_s = clock()
        self._next_s = self._began_s + self.EVERY_S
        self._before = Counters()
        self._tried: _Tried | None = None
        self._cap, self._cap_until_s, self._retry_s = math.inf, 0.0, self.RETRY_S
        self._deep_enough_until_s = 0.0
        self._idle_looks, self._patience, self._busiest = 0, self.IDLE_LOOKS, 0.0
        self._shrunk = False

    def most(self, consumer_busy: float = 1.0) -> int:
        """The largest number of threads that the budget allows and that have work at the same time."""
        at_a_time = self._depth or self._room - SPARE * self._pieces
        return max(1, min(self._budget.most(consumer_busy), at_a_time))

    def depth_of(self, workers: int) -> int:
        return self._depth or depth_for(workers, self._pieces, self._room)

    def begin(self, pipe: Pipe) -> None:
        """Call when a pipe is started: measurements begin now."""
        self._before, self._tried, self._idle_looks = pipe.counters, None, 0
        self._looked_s, self._worked_s = self._clock(), self._work()
        self._next_s = self._looked_s + self.EVERY_S

    def look(self, pipe: Pipe) -> bool:
        """Whether the pipe was resized. Most calls only read the clock."""
        now_s = self._clock()
        if now_s < self._next_s:
            return False
        counters, worked_s = pipe.counters, self._work()
        seen = _Seen.between(self._before, counters, now_s - self._looked_s, worked_s - self._worked_s, pipe.workers)
        if seen.delivered < 2 * pipe.workers and seen.elapsed_s < self.LONGEST_LOOK_S:
            self._next_s = now_s + self.EVERY_S  # too few batches to judge
            return False
        before = pipe.workers, pipe.depth
        self._decide(pipe, seen, now_s)
        self._before, self._worked_s = counters, worked_s
        self._looked_s, self._next_s = now_s, now_s + self.EVERY_S
        return (pipe.workers, pipe.depth) != before

    def _decide(self, pipe: Pipe, seen: _Seen, now_s: float) -> None:
        tried, self._tried = self._tried, None
        if tried is not None and not tried.helped(seen, pipe.workers) and not tried.looked:
            self._tried = replace(tried, looked=True)  # one bad measurement may be noise
        elif tried is not None and not tried.helped(seen, pipe.workers):
            more = "more threads"
            if pipe.workers == tried.workers:
                more, self._deep_enough_until_s = "more batches ahead", now_s + self._retry_s
            else:
                self._cap, self._cap_until_s = tried.workers, now_s + self._retry_s
            self._retry_s *= 2
            now, then = _per_s(seen.rate / self._pieces), _per_s(tried.rate / self._pieces)
            self._resize(pipe, tried.workers, tried.depth, f"{more} made it no faster ({now}, before {then})", now_s)
        elif seen.waits > self.WAITS and seen.busy > self.BUSY:
            self._idle_looks = 0
            self._grow(pipe, seen, now_s)
        elif seen.waits > self.WAITS and seen.idle > 0.2 and now_s >= self._deep_enough_until_s and self._depth is None:
            self._idle_looks = 0
            self._tried = _Tried(pipe.workers, pipe.depth, seen.rate)
            deeper = min(self._room, pipe.depth + max(1, pipe.depth // 2))
            why = f"training waits {seen.waits:.0%} of the time while threads are idle {seen.idle:.0%}: batches come in bursts"
            self._resize(pipe, pipe.workers, deeper, why, now_s)
        else:
            self._shrink_when_idle(pipe, seen, now_s)

    def _grow(self, pipe: Pipe, seen: _Seen, now_s: float) -> None:
        most = self.most(seen.works * self._budget.cores / pipe.workers)  # its share of busy time if all cores read
        if now_s < self._cap_until_s:
            most = min(most, int(self._cap))
        enough = math.ceil(pipe.workers * seen.busy / max(0.01, 1 - seen.waits) * _HEADROOM)
        workers = min(most, 2 * pipe.workers, max(pipe.workers + 1, enough))
        if workers <= pipe.workers:
            return
        if self._shrunk:  # removing threads was wrong: wait longer from now on
            self._shrunk, self._patience = False, 2 * self._patience
        self._tried = _Tried(pipe.workers, pipe.depth, seen.rate)
        why = f"training waits {seen.waits:.0%} of the time and {_threads(pipe.workers)} are busy {seen.busy:.0%}"
        self._resize(pipe, workers, max(pipe.depth, self.depth_of(workers)), why, now_s)

    def _shrink_when_idle(self, pipe: Pipe, seen: _Seen, now_s: float) -> None:
        enough = max(1, math.ceil(pipe.workers * seen.busy * _HEADROOM))
        if enough >= pipe.workers or seen.waits > 0.01:
            self._idle_looks = 0
            return
        self._busiest = max(self._busiest, enough) if self._idle_looks else enough
        self._idle_looks += 1
        if self._idle_looks >= self._patience:
            self._idle_looks, self._shrunk = 0, True
            why = f"threads were idle in {self._patience} checks in a row, now {seen.idle:.0%} of the time"
            self._resize(pipe, int(self._busiest), self.depth_of(int(self._busiest)), why, now_s)

    def _resize(self, pipe: Pipe, workers: int, depth: int, why: str, now_s: float) -> None:
        changes = []
        if workers != pipe.workers:
            changes.append(f"threads {pipe.workers} -> {workers}")
        if depth != pipe.depth:
            changes.append(f"depth {-(-pipe.depth // self._pieces)} -> {-(-depth // self._pieces)}")
        if changes:
            pipe.resize(workers=workers, depth=depth)
            self.history.append(Change(round(now_s - self._began_s, 3), ", ".join(changes), why))


@dataclass(frozen=True)
class _Seen:
    """Shares of the time since the last check."""

    elapsed_s: float
    delivered: int
    waits: float  # of the consumer's time
    works: float  # of the consumer's time: its thread runs on a core
    busy: float  # of the threads' time
    idle: float

    @classmethod
    def between(cls, before: Counters, now: Counters, elapsed_s: float, worked_s: float, workers: int) -> _Seen:
        spent = now.since(before)
        of_threads_s = workers * elapsed_s
        busy, idle = min(1.0, spent.making_s / of_threads_s), min(1.0, spent.room_wait_s / of_threads_s)
        return cls(elapsed_s, spent.delivered, min(1.0, spent.wait_s / elapsed_s), worked_s / elapsed_s, busy, idle)

    @property
    def rate(self) -> float:
        return self.delivered / self.elapsed_s


@dataclass(frozen=True)
class _Tried:
    """The numbers before threads or depth were increased."""

    workers: int
    depth: int
    rate: float
    looked: bool = False  # one check already showed no gain

    def helped(self, seen: _Seen, workers: int) -> bool:
        """More threads helped if waiting ended or a quarter of their ideal speed-up was reached; more depth, if 2% was."""
        wanted = (workers / self.workers - 1) / 4 if workers != self.workers else 0.02
        return seen.waits <= Tuner.WAITS or self.rate == 0 or seen.rate / self.rate - 1 >= wanted


def _per_s(rate: float) -> str:
    return f"{show_count(rate)} batches/s"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
