"""Where the time of a step goes, from a trace: every nanosecond of wall time is in exactly one row.

While the device is busy, the time belongs to the kind of its work, or to the phase that launched it. While the device is idle,
the time belongs to the host's activity, because the device waits for the host. On a CPU the host is the device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from flatout.doctor import kinds, marks
from flatout.doctor.trace import DeviceWork, Span, ThreadSample, Trace

DATA, OPTIMIZER, CHECKPOINT, EVALUATION = "data wait", "optimizer", "checkpoint", "evaluation"
LOGGING, WRITES = "logging", "file writes"
PYTHON, UNATTRIBUTED = "Python", "unattributed"
ROWS = (
    DATA, kinds.COPY, *kinds.COMPUTE, OPTIMIZER, kinds.LAUNCH, kinds.SYNC, kinds.ALLOCATION, kinds.COMMUNICATION, kinds.COMPILE,
    LOGGING, WRITES, CHECKPOINT, EVALUATION, PYTHON, UNATTRIBUTED,
)  # fmt: skip
_PHASES = {marks.DATA: DATA, marks.LOGGING: LOGGING, marks.WRITE: WRITES, marks.CHECKPOINT: CHECKPOINT}
_SHORT_GAP = 100_000  # ns between two operators: a shorter gap is call overhead, a longer one is the script's code
_SAMPLE_REACH = 10_000_000
_LOOK_REACH = 1_000_000
_STALLS = (kinds.SYNC, kinds.ALLOCATION)
_LOOKED_AT = 2.0  # least slow-down of the host's operators under the profiler


@dataclass
class Account:
    """Nanoseconds of the whole window, by row, and by row and line. Time left out of the trace is in neither."""

    wall: int
    steps: int
    rows: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROWS, 0.0))
    lines: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    device_busy: float = 0.0
    host_busy: float = 0.0  # host time without waiting

    def where(self, row: str) -> str:
        """The line with the most time in this row."""
        named = [(spent, place) for (of, place), spent in self.lines.items() if of == row and place]
        return max(named)[1] if named else ""

    def add(self, row: str, place: str, spent: float) -> None:
        self.rows[row] += spent
        self.lines[row, place] += spent


@dataclass(frozen=True, slots=True)
class _Moment:
    """An interval of the host's time that belongs to one row."""

    start: int
    end: int
    row: str
    where: str
    phase: str  # the phase of device work launched in this interval, or ""
    waits: bool = False


_MomentAt = Callable[[int], _Moment | None]


def account(trace: Trace, operator_ns: float = 0.0, stretched: float = 1.0) -> Account:
    """`operator_ns`: the time to call the smallest operator on this machine; this much of each operator counts as launching.
    `stretched`: how many times longer a step took under the profiler."""
    kept = _kept(trace.begin, trace.end, trace.left_out)
    total = Account(sum(end - start for start, end in kept), trace.steps)
    samples = _Samples(trace.samples)
    moments = list(_moments(trace, samples))
    total.host_busy = float(sum(_within(m.start, m.end, kept) for m in moments if not m.waits))
    if not trace.device:
        for moment in moments:
            spent = _within(moment.start, moment.end, kept)
            if not spent:
                continue
            if moment.row in kinds.COMPUTE:
                called = min(spent, operator_ns)
                total.add(kinds.LAUNCH, moment.where, called)
                total.add(moment.row, moment.where, spent - called)
            else:
                total.add(moment.row, moment.where, spent)
    else:
        _with_device(trace, moments, kept, total, max(stretched, _LOOKED_AT))
    rest = total.wall - sum(total.rows.values())  # time in no row; less than a nanosecond is rounding
    total.add(UNATTRIBUTED, "", rest if rest > 1 else 0.0)
    return total


# the host


def _moments(trace: Trace, samples: _Samples) -> Iterator[_Moment]:
    """Ordered and without gaps, from the start of the window to its end."""
    helpers = _Helpers(trace.helpers)
    stack: list[Span] = []
    at = trace.begin
    logged: Span | None = None  # the previous span, if it was logging
    for span in sorted(trace.host, key=lambda s: (s.start, -s.end)):
        while stack and stack[-1].end <= span.start:
            ended = stack.pop()
            yield from _explained(at, ended.end, [*stack, ended], samples, helpers, trace)
            at = max(at, ended.end)
        between = [logged] if not stack and logged is not None and _is_logging(span) else stack
        yield from _explained(at, span.start, between, samples, helpers, trace)  # a gap between logging calls is logging
        at = max(at, span.start)
        if not stack:
            logged = span if _is_logging(span) else None
        stack.append(span)
    while stack:
        ended = stack.pop()
        yield from _explained(at, ended.end, [*stack, ended], samples, helpers, trace)
        at = max(at, ended.end)
    yield from _explained(at, trace.end, [], samples, helpers, trace)


def _is_logging(span: Span) -> bool:
    return span.mark is not None and span.mark.kind == marks.LOGGING


def _explained(
    start: int, end: int, stack: Sequence[Span], samples: _Samples, helpers: _Helpers, trace: Trace
) -> Iterator[_Moment]:
    start, end = max(start, trace.begin), min(end, trace.end)
    if end <= start:
        return
    phase, place = _phase(stack)
    inner = _innermost_mark(stack)
    if phase:
        yield _Moment(start, end, phase, place, phase)
        return
    here = inner.where if inner is not None else ""
    leaf = stack[-1] if stack else None
    if leaf is not None and leaf.mark is None:
        row = kinds.of_operator(leaf.name)
        if row is None and inner is not None and inner.kind in (marks.READ, marks.COPY):
            row = kinds.SYNC if inner.kind == marks.READ else kinds.COPY
        if row is not None:
            waits = row == kinds.SYNC or kinds.is_wait(leaf.name)
            yield _Moment(start, end, row, here or samples.where(start, end), "", waits)
            return
    if inner is not None and inner.kind == marks.READ:
        yield _Moment(start, end, kinds.SYNC, here, "", waits=True)
    elif inner is not None and inner.kind == marks.COPY:
        yield _Moment(start, end, kinds.COPY, here, "")
    elif inner is not None and inner.kind == marks.BACKWARD:
        waits = helpers.idle(start, end)
        yield _Moment(start, end, kinds.LAUNCH, here, "", waits=waits)
    elif end - start - samples.looking(start, end) <= _SHORT_GAP or (leaf is not None and leaf.mark is None):
        yield _Moment(start, end, kinds.LAUNCH, here, "")
    else:
        yield from samples.split(start, end)


def _phase(stack: Sequence[Span]) -> tuple[str, str]:
    """The outermost phase in the stack. Passes in a closure do not count as part of the optimizer that calls it."""
    for depth, span in enumerate(stack):
        if span.mark is not None and span.mark.kind in _PHASES:
            return _PHASES[span.mark.kind], span.mark.where
        if (span.mark is not None and span.mark.kind == marks.STEP) or span.name.startswith("Optimizer.step#"):
            inside = any(s.mark is not None and s.mark.kind in (marks.FORWARD, marks.BACKWARD) for s in stack[depth + 1 :])
            if not inside:
                place = next((s.mark.where for s in stack[: depth + 1] if s.mark is not None and s.mark.kind == marks.STEP), "")
                return OPTIMIZER, place
    return "", ""


def _innermost_mark(stack: Sequence[Span]) -> marks.Mark | None:
    for span in reversed(stack):
        if span.mark is not None:
            return span.mark
    return None


class _Helpers:
    """When the threads of the backward pass were busy."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._busy = _union([(span.start, span.end) for span in spans if not kinds.is_wait(span.name)])

    def idle(self, start: int, end: int) -> bool:
        return bool(self._busy) and _within(start, end, self._busy) < (end - start) / 2


class _Samples:
    def __init__(self, samples: Sequence[ThreadSample]) -> None:
        self._samples = sorted(samples, key=lambda sample: sample.at)
        self._times = [sample.at for sample in self._samples]

    def where(self, start: int, end: int) -> str:
        near = self._samples[bisect_right(self._times, start) : bisect_right(self._times, end)]
        return near[0].where if near else ""

    def looking(self, start: int, end: int) -> int:
        """The sampler's share of an interval, in ns. Switching threads takes as long as sampling itself."""
        first, last = bisect_right(self._times, start - _LOOK_REACH), bisect_right(self._times, end)
        return sum(2 * sample.took for sample in self._samples[first:last] if sample.at + sample.took > start)

    def split(self, start: int, end: int) -> Iterator[_Moment]:
        """Splits an interval of the script's code by the sampled lines; unattributed if there is no sample."""
        first, last = bisect_right(self._times, start), bisect_right(self._times, end)
        near = [sample for sample in self._samples[first:last] if sample.where]
        if not near:  # an interval without a sample uses the nearest one
            close = [i for i in (first - 1, last) if 0 <= i < len(self._times)]
            close = [i for i in close if min(abs(self._times[i] - start), abs(self._times[i] - end)) < _SAMPLE_REACH]
            near = [self._samples[i] for i in close if self._samples[i].where][:1]
        if not near:
            yield _Moment(start, end, UNATTRIBUTED, "", "")
            return
        edges = [start, *((a.at + b.at) // 2 for a, b in pairwise(near)), end]
        for sample, (begin, stop) in zip(near, pairwise(edges), strict=True):
            # torch's Python code between two operators is call overhead: modules, hooks, freed memory
            row = kinds.LAUNCH if sample.in_torch else WRITES if sample.writes else PYTHON
            yield _Moment(begin, stop, row, sample.where, "")


# the device


def _with_device(
    trace: Trace, moments: Sequence[_Moment], kept: Sequence[tuple[int, int]], total: Account, stretched: float
) -> None:
    starts = [moment.start for moment in moments]

    def moment_at(time: int) -> _Moment | None:
        at = bisect_right(starts, time) - 1
        return moments[at] if at >= 0 else None

    busy = _busy(trace.device, moment_at)
    for start, end, row, place in busy:
        worked = _within(start, end, kept)
        total.add(row, place, worked)
        total.device_busy += worked
    working = [(start, end) for start, end, _, _ in busy]
    is_ahead = total.host_busy / stretched <= total.device_busy
    stalls = _Stalls(moments if is_ahead else [], kept, trace.steps)
    for start, end in _complement(working, trace.begin, trace.end):
        for at in range(max(bisect_right(starts, start) - 1, 0), len(moments)):
            moment = moments[at]
            if moment.start >= end:
                break
            spent = _within(max(start, moment.start), min(end, moment.end), kept)
            row = kinds.LAUNCH if moment.row in kinds.COMPUTE else moment.row
            if spent > 0:
                for of, place, lost in stalls.blamed(row, moment, spent):
                    total.add(of, place, lost)


class _Stalls:
    """Charges idle device time to the stalls that caused it. A host with less work than the device would stay ahead of it and
    never let it idle, if it did not stop for reads and for memory freed to the driver. So idle time is charged to the stalls of
    the step before it. The profiler doubles the host's work."""

    def __init__(self, moments: Sequence[_Moment], kept: Sequence[tuple[int, int]], steps: int) -> None:
        self._starts = [start for start, _ in kept]
        self._kept = kept
        self._before = [0, *accumulate(end - start for start, end in kept)]
        self._step = self._before[-1] / max(steps, 1)
        waited = [
            (moment, _within(moment.start, moment.end, kept)) for moment in moments if moment.row in _STALLS and moment.waits
        ]
        self._stalls = [(moment.row, moment.where, spent) for moment, spent in waited if spent]
        self._ends = [self._clock(moment.end) for moment, spent in waited if spent]
        self._first = self._last = 0  # stalls within one step before the last call of `blamed`
        self._waited: dict[tuple[str, str], int] = defaultdict(int)  # ns by row and line of these stalls

    def blamed(self, row: str, idle: _Moment, spent: float) -> Iterator[tuple[str, str, float]]:
        """Row, line and time for each cause of an idle interval. Call it in order of time."""
        self._go_on(max(self._clock(idle.start), self._step))  # the step before the first is not in the trace
        if self._first == self._last or row not in (kinds.LAUNCH, PYTHON, UNATTRIBUTED):
            yield row, idle.where, spent
            return
        whole = sum(self._waited.values())
        for (of, place), waited in self._waited.items():
            yield of, place, spent * waited / whole

    def _go_on(self, until: float) -> None:
        while self._last < len(self._ends) and self._ends[self._last] <= until:
            row, place, spent = self._stalls[self._last]
            self._waited[row, place] += spent
            self._last += 1
        while self._first < self._last and self._ends[self._first] < until - self._step:
            row, place, spent = self._stalls[self._first]
            self._waited[row, place] -= spent
            self._first += 1

    def _clock(self, time: int) -> int:
        """Time from the start of the window, without evaluations."""
        at = bisect_right(self._starts, time) - 1
        return 0 if at < 0 else self._before[at] + min(time, self._kept[at][1]) - self._kept[at][0]


def _busy(work: Sequence[DeviceWork], moment_at: _MomentAt) -> list[tuple[int, int, str, str]]:
    """Busy intervals of the device, each with one row. Where a computation and a copy overlap, the computation counts."""
    found: list[tuple[int, int, str, str]] = []
    jobs = sorted(((w, *_of_work(w, moment_at)) for w in work), key=lambda job: (job[0].start, job[0].end))
    edges: list[tuple[int, int, str, str]] = [(w.start, w.end, row, place) for w, row, place in jobs]
    computes = [edge for edge in edges if edge[2] != kinds.COPY]
    copies = [edge for edge in edges if edge[2] == kinds.COPY]
    covered = 0
    for start, end, row, place in computes:
        start = max(start, covered)
        if end > start:
            found.append((start, end, row, place))
            covered = end
    shadow = [(start, end) for start, end, _, _ in found]
    covered = 0
    for start, end, row, place in copies:
        for a, b in _complement(shadow, max(start, covered), end):
            found.append((a, b, row, place))
        covered = max(covered, end)
    return sorted(found)


def _of_work(work: DeviceWork, moment_at: _MomentAt) -> tuple[str, str]:
    asked = moment_at(work.launched) if work.launched is not None else None
    row = kinds.of_kernel(work.name)
    if asked is None:
        return row, ""
    return (asked.phase if asked.phase and asked.phase != DATA else row), asked.where


# intervals


def _kept(begin: int, end: int, left_out: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return _complement(_union(list(left_out)), begin, end)


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > start:
            joined.append((start, end))
    return joined


def _complement(spans: Sequence[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of begin to end outside all spans. `spans` are sorted and disjoint."""
    gaps = []
    at = begin
    first = max(bisect_right(spans, (begin, begin)) - 1, 0)
    for start, stop in spans[first:]:
        if start >= end:
            break
        if start > at:
            gaps.append((at, min(start, end)))
        at = max(at, stop)
    if at < end:
        gaps.append((at, end))
    return gaps


def _within(start: int, end: int, spans: Sequence[tuple[int, int]]) -> int:
    """How much of start to end lies in `spans`, which are sorted and disjoint."""
    if end <= start:
        return 0
    spent = 0
    first = max(bisect_right(spans, (start, start)) - 1, 0)
    for begin, stop in spans[first:]:
        if begin >= end:
            break
        spent += max(0, min(end, stop) - max(start, begin))
    return spent
