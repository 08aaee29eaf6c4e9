"""How the trials of a group are laid out on a device: stacked, in several processes, or one after another.

Whichever is fastest: measured on the trials themselves, for a short time, and said with the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from flatout.machine.out_of_memory import is_out_of_memory
from flatout.machine.threads import most_threads
from flatout.measure.clock import synchronize
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.proof import StackProof, prove
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack

STACKED, PACKED, SERIAL = "stacked", "packed", "serial"
NONE = "none"  # not even one of them could be measured in time
_WARM, _TIMED_S = 6, 0.2  # steps before the clock starts; time of each measurement
_TURNS, _A_TURN, _LONGEST_TURN_S = 3, 8, 0.1  # measurements at least, and the steps and time of each
_WIDTHS = (16, 64, 256)  # of stacks that are tried; more trials are trained in several stacks
_BETTER = 1.1  # a stack must be faster by this factor: its trials can't stop one by one


@dataclass(frozen=True)
class Layout:
    """`width`: trials in a stack. `threads` of each process, `processes` side by side. `rates`: trial-steps a second that were
    measured, by what was tried."""

    kind: str
    width: int = 1
    threads: int = 0
    processes: int = 1
    why: str = ""
    proof: str = ""
    rates: dict[str, float] = field(default_factory=dict)
    measured_with: int = 1  # trials
    rate_elsewhere: float = 0.0  # of the slowest shape that was measured, if this one was not

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose_layout(group: Group, candidates: Sequence[TrialCandidate], limit_s: float = 10.0) -> Layout:
    """The layout with the most trial-steps a second. A stack only if it is proven to learn what trials alone learn."""
    began_s = time.perf_counter()
    counts = _thread_counts(group)
    rates = {f"{SERIAL}, {_threads(count)}": alone_rate(group, candidates[0], count) for count in counts}
    threads = max(counts, key=lambda count: rates[f"{SERIAL}, {_threads(count)}"])
    serial = rates[f"{SERIAL}, {_threads(threads)}"]
    if len(candidates) == 1:
        return Layout(SERIAL, threads=threads, why="one trial of this shape", rates=rates)
    proof = prove(group, candidates[:3])
    if not proof.passed:
        return Layout(SERIAL, threads=threads, why=proof.why, rates=rates, measured_with=len(candidates))
    best = (0.0, 1, threads)
    for width in _widths(len(candidates)):
        tried = 0.0
        for count in counts:
            if time.perf_counter() - began_s > limit_s:
                break
            found = _stack_rate(group, candidates[:width], count)
            if found is None:
                break
            rates[f"{width} {STACKED}, {_threads(count)}"] = found
            best, tried = max(best, (found, width, count)), max(tried, found)
        if tried < 0.7 * best[0]:
            break  # wider stacks do not fit the cache either
    return replace(_chosen(best, serial, threads, proof, rates), measured_with=len(candidates))


def _chosen(best: tuple[float, int, int], serial: float, threads: int, proof: StackProof, rates: dict[str, float]) -> Layout:
    rate, width, count = best
    if rate < _BETTER * serial:
        why = f"{serial:,.0f} trial-steps/s one after another, {rate:,.0f} stacked: this model keeps the machine busy alone"
        if not rate:
            why = "there was no time, or no memory, to measure a stack"
        return Layout(SERIAL, threads=threads, why=why, proof=proof.words, rates=rates)
    why = f"{rate:,.0f} trial-steps/s with {width} in a stack, {serial:,.0f} one after another: {rate / serial:.1f}x"
    return Layout(STACKED, width, count, why=why, proof=proof.words, rates=rates)


def packed(serial: Layout, processes: int, rate: float) -> Layout:
    """The same trials in several processes, if that was measured to be faster."""
    alone = max(serial.rates.values())
    why = (
        f"{rate:,.0f} trial-steps/s in {processes} processes, {alone:,.0f} one after another: {rate / alone:.1f}x; {serial.why}"
    )
    rates = {**serial.rates, f"{PACKED}, {processes} processes": rate}
    return replace(serial, kind=PACKED, threads=1, processes=processes, why=why, rates=rates)


def _widths(count: int) -> list[int]:
    return sorted({min(width, count) for width in _WIDTHS})


def _thread_counts(group: Group) -> list[int]:
    return [0] if group.device.type != "cpu" else sorted({1, most_threads()})


def _threads(count: int) -> str:
    return "on the device" if not count else "1 thread" if count == 1 else f"{count} threads"


def alone_rate(group: Group, candidate: TrialCandidate, threads: int, timed_s: float = _TIMED_S) -> float:
    """Steps a second of one trial."""
    return 1 / _step_seconds(group, Alone(group, [candidate]).train, threads, timed_s)


def _stack_rate(group: Group, candidates: Sequence[TrialCandidate], threads: int) -> float | None:
    try:
        return len(candidates) / _step_seconds(group, TrialStack(group, candidates).train, threads)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _step_seconds(group: Group, train: Callable[[int], None], threads: int, timed_s: float = _TIMED_S) -> float:
    """Of one step: the median of several turns, without the first steps, which load kernels."""
    with group.with_threads(threads):
        done = min(_WARM, group.total_steps)
        began_s = time.perf_counter()
        train(done)
        synchronize(group.device)
        steps = max(1, min(_A_TURN, int(done * _LONGEST_TURN_S / max(time.perf_counter() - began_s, 1e-9))))
        turns, ends_s = list[float](), time.perf_counter() + timed_s
        while done + steps <= group.total_steps and (len(turns) < _TURNS or time.perf_counter() < ends_s):
            began_s = time.perf_counter()
            done += steps
            train(done)
            synchronize(group.device)
            turns.append((time.perf_counter() - began_s) / steps)
            if len(turns) >= _TURNS and time.perf_counter() > ends_s:
                break
        return median(turns) if turns else (time.perf_counter() - began_s) / max(1, done)
