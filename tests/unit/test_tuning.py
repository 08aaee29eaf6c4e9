"""Which stage bounds the rate, and a tuner that settles: on a simulated pipe with a clock of its own."""

from __future__ import annotations

from itertools import pairwise

from flatout.data.feeds.ahead import Counters
from flatout.data.feeds.tuning import ReadingBudget, Tuner

GB = 10**9


class Simulated:
    """A pipe in which each batch takes `read_s` of a thread and `train_s` of the consumer, on a clock that is stepped.

    No more than `parallel` threads get anywhere at a time, as under a lock or on a disk. With `bursts` threads idle while the
    consumer waits, until eight batches are kept ahead.
    """

    def __init__(self, read_s: float, train_s: float, *, workers: int = 1, parallel: float = 100.0) -> None:
        self.read_s, self.train_s, self.parallel, self.bursts = read_s, train_s, parallel, False
        self.workers, self.depth, self.now_s = workers, workers + 2, 0.0
        self.calm_depth = 8
        self.on_a_core = True  # or it only starts what a device does
        self.resized: list[tuple[int, int]] = []
        self._delivered = self._making_s = self._room_wait_s = self._wait_s = 0.0

    @property
    def worked_s(self) -> float:
        return self.now_s - self._wait_s if self.on_a_core else 0.0

    @property
    def counters(self) -> Counters:
        return Counters(int(self._delivered), self._making_s, self._room_wait_s, self._wait_s)

    def resize(self, workers: int | None = None, depth: int | None = None) -> None:
        self.workers, self.depth = workers or self.workers, depth or self.depth
        self.resized.append((self.workers, self.depth))

    def step(self, seconds: float) -> None:
        supply = min(self.workers, self.parallel) / self.read_s
        demand = 1 / max(self.train_s, 1e-9)
        rate = min(supply, demand)
        busy = min(1.0, rate * self.read_s * max(1.0, self.workers / self.parallel) / self.workers)
        waits = 1 - rate * self.train_s
        if self.bursts and self.depth < self.calm_depth:
            busy, waits, rate = 0.5, 0.3, 0.7 * rate
        self.now_s += seconds
        self._delivered += rate * seconds
        self._making_s += busy * self.workers * seconds
        self._room_wait_s += (1 - busy) * self.workers * seconds
        self._wait_s += waits * seconds

    def run(self, tuner: Tuner, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.step(0.05)
            tuner.look(self)


def _tuner(pipe: Simulated, cores: int = 16, memory_bytes: int = 100 * GB, batch_bytes: float = 10**8) -> Tuner:
    tuner = Tuner(ReadingBudget(cores, memory_bytes), batch_bytes, clock=lambda: pipe.now_s, work=lambda: pipe.worked_s)
    tuner.begin(pipe)
    return tuner


def test_threads_are_added_until_the_consumer_no_longer_waits() -> None:
    pipe = Simulated(read_s=0.1, train_s=0.02)
    tuner = _tuner(pipe)
    pipe.run(tuner, 60)
    assert 5 <= pipe.workers <= 7 and pipe.depth == pipe.workers + 2
    settled = list(pipe.resized)
    pipe.run(tuner, 600)
    assert pipe.resized == settled  # nothing changes, so nothing is changed
    assert all("waits" in change.why and "busy" in change.why for change in tuner.history)
    assert tuner.history[0].what == "threads 1 -> 2, depth 3 -> 4" and 0.5 <= tuner.history[0].when_s <= 5.1


def test_no_more_threads_than_cores_or_memory_allow() -> None:
    pipe = Simulated(read_s=1.0, train_s=0.2)  # wants 5 threads
    pipe.run(_tuner(pipe, cores=4), 120)
    assert pipe.workers == 3  # a core is left to whoever trains
    mostly_waiting = Simulated(read_s=1.0, train_s=0.001)
    mostly_waiting.run(_tuner(mostly_waiting, cores=4), 120)
    assert mostly_waiting.workers == 4  # who only waits needs no core
    launching = Simulated(read_s=1.0, train_s=0.2)
    launching.on_a_core = False
    launching.run(_tuner(launching, cores=4), 120)
    assert launching.workers == 4
    little_memory = Simulated(read_s=1.0, train_s=0.001)
    little_memory.run(_tuner(little_memory, memory_bytes=5 * 10**8), 120)
    assert (little_memory.workers, little_memory.depth) == (3, 5)


def test_threads_that_make_nothing_faster_are_given_back_and_tried_ever_more_rarely() -> None:
    pipe = Simulated(read_s=0.02, train_s=0.004, workers=2, parallel=2)  # a third thread only waits for the first two
    tuner = _tuner(pipe)
    pipe.run(tuner, 1800)
    assert pipe.workers == 2
    assert "no faster" in tuner.history[1].why
    tries = [change.when_s for change in tuner.history if "no faster" in change.why]
    pauses = [after - before for before, after in pairwise(tries)]
    assert 3 <= len(tries) <= 7 and all(after > 1.8 * before for before, after in pairwise(pauses))


def test_idle_threads_are_taken_away_after_a_long_time_only() -> None:
    pipe = Simulated(read_s=0.02, train_s=0.05, workers=15)
    tuner = _tuner(pipe)
    pipe.run(tuner, 5)
    assert pipe.workers == 15
    pipe.run(tuner, 60)
    assert (pipe.workers, pipe.depth) == (1, 3)
    assert "idle" in tuner.history[0].why


def test_a_load_that_comes_and_goes_makes_it_change_ever_more_rarely_and_then_no_more() -> None:
    pipe = Simulated(read_s=0.1, train_s=0.02)
    tuner = _tuner(pipe)
    shrinks = []
    for _ in range(20):
        before = len(tuner.history)
        pipe.train_s = 0.02
        pipe.run(tuner, 60)
        pipe.train_s = 0.2  # long enough for idle threads to be taken away, at first; each time that is wrong doubles it
        pipe.run(tuner, 120)
        shrinks.append(sum("idle" in change.why for change in tuner.history[before:]))
    assert 1 <= sum(shrinks[:5]) <= 4 and sum(shrinks[5:]) == 0
    assert pipe.workers >= 5


def test_bursts_get_a_deeper_queue_instead_of_more_threads() -> None:
    pipe = Simulated(read_s=0.1, train_s=0.03, workers=4)
    pipe.bursts = True
    tuner = _tuner(pipe)
    pipe.run(tuner, 30)
    assert pipe.workers == 4 and pipe.depth >= 8
    assert "bursts" in tuner.history[0].why


def test_a_depth_that_was_pinned_stays_and_bounds_the_threads() -> None:
    pipe = Simulated(read_s=0.4, train_s=0.02)
    pipe.depth = 3
    pipe.run(Tuner(ReadingBudget(32, GB), batch_bytes=1.0, depth=3, clock=lambda: pipe.now_s, work=lambda: pipe.worked_s), 60)
    assert (pipe.workers, pipe.depth) == (3, 3)
    pipe = Simulated(read_s=0.01, train_s=0.1)
    pipe.bursts = True
    pipe.run(Tuner(ReadingBudget(8, GB), batch_bytes=1.0, depth=3, clock=lambda: pipe.now_s, work=lambda: pipe.worked_s), 60)
    assert pipe.depth == 3


def test_a_deeper_queue_that_makes_nothing_faster_is_taken_back() -> None:
    pipe = Simulated(read_s=0.1, train_s=0.03, workers=4)
    pipe.bursts, pipe.calm_depth = True, 10**6  # the consumer takes several at once, and waits however many there are
    tuner = _tuner(pipe)
    pipe.run(tuner, 600)
    assert pipe.depth <= 19 and len(tuner.history) <= 16
    assert any("more batches ahead made it no faster" in change.why for change in tuner.history)


def test_a_new_pipe_begins_from_its_own_counters() -> None:
    clock = Simulated(read_s=0.1, train_s=0.2)
    tuner = _tuner(clock)
    clock.run(tuner, 30)
    fresh = Simulated(read_s=0.1, train_s=0.02)  # its counters start at 0: taken for the old one's, they would run backwards
    tuner.begin(fresh)
    for _ in range(20):
        clock.step(0.05)
        fresh.step(0.05)
        tuner.look(fresh)
    assert fresh.workers >= 2


# the budget


def test_memory_bounds_how_many_batches_are_read_ahead_and_never_below_what_it_takes_to_read_at_all() -> None:
    assert ReadingBudget(16, 4 * GB).batches(10**9) == 4
    assert ReadingBudget(16, GB).batches(10**9) == 3


def test_one_core_still_reads() -> None:
    assert ReadingBudget(1, 0).threads == 1 and ReadingBudget(8, GB).threads == 7
    here = ReadingBudget.here()
    assert here.cores >= 1 and here.threads >= 1 and here.memory_bytes > 0
