"""How the trials of a group are laid out on a device: stacked, in several processes, or one after another.

Whichever is fastest: measured on the trials themselves, for a short time, and said with the figures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from flatout.machine.out_of_memory import is_out_of_memory
from flatout.machine.threads import most_threads
from flatout.measure.clock import synchronize
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.proof import StackProof, cannot_be_stacked, prove
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.unfolded import GROUPED, UNFOLDED, convolution_forms

STACKED, PACKED, SERIAL = "stacked", "packed", "serial"
NONE = "none"  # not even one of them could be measured in time
_WARM, _FEW_WARM = 6, 3  # steps before the clock starts; the fewer ones load what has to be loaded
_HOPELESS = 2.0  # times as long as the best so far: a step that can't become the fastest
_TIMED_S, _TIMED_ON_DEVICE_S = 0.2, 0.1  # of each measurement; on a device of its own times hardly vary
_TURNS, _A_TURN = 3, 8  # measurements at least, and the most steps of each, which take at most half of that time
_A_TURN_ON_DEVICE = 64  # the host's work at the start of each turn is then a small part of it
_CLOSE = 0.7  # of the best rate: if a width is slower, wider ones are not looked at
_PROMISING = 0.8  # of the best rate of a width: what is slower is not looked at with more trials
_FORM = {GROUPED: "grouped ones", UNFOLDED: "products of matrices"}
_WIDTHS = (16, 64, 256)  # of stacks that are tried; more trials are trained in several stacks
_HARDLY = 1.5  # times as long as a step of the fewest
_QUICK = 0.2  # of the limit: a measurement that is worth it afterwards
_BETTER = 1.1  # a stack must be faster by this factor: its trials can't stop one by one


@dataclass(frozen=True)
class Layout:
    """`width`: trials in a stack. `threads` of each process, `processes` side by side. `rates`: trial-steps a second that were
    measured, by what was tried. `convolutions`: their form in a stack. `nearly_free`: trials that take hardly longer together
    than the fewest that were measured; 0: time grows with each."""

    kind: str
    width: int = 1
    threads: int = 0
    processes: int = 1
    why: str = ""
    proof: str = ""
    rates: dict[str, float] = field(default_factory=dict)
    measured_with: int = 1  # trials
    rate_elsewhere: float = 0.0  # of the slowest shape that was measured, if this one was not
    convolutions: str = GROUPED
    nearly_free: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose_layout(group: Group, candidates: Sequence[TrialCandidate], limit_s: float = 10.0) -> Layout:
    """The layout with the most trial-steps a second. A stack only if it is proven to learn what trials alone learn."""
    began_s = time.perf_counter()
    counts = _thread_counts(group)
    rates: dict[str, float] = {}
    for count in counts:
        wanted_s = 1 / max(rates.values()) if rates else math.inf
        rates[f"{SERIAL}, {_threads(count)}"] = alone_rate(group, candidates[0], count, wanted_s=wanted_s)
    threads = max(counts, key=lambda count: rates[f"{SERIAL}, {_threads(count)}"])
    serial = rates[f"{SERIAL}, {_threads(threads)}"]
    if len(candidates) == 1:
        return Layout(SERIAL, threads=threads, why="one trial of this shape", rates=rates)
    proofs = _proofs(group, candidates[:3], began_s + limit_s / 2)
    passed = {form: proof for form, proof in proofs.items() if proof.passed}
    if not passed:
        why = proofs[GROUPED].why
        return Layout(SERIAL, threads=threads, why=why, rates=rates, measured_with=len(candidates))
    stacks: list[_Measured] = []
    ways = [(form, threads) for form in passed]  # of the first width
    again_s = limit_s  # what another measurement would take
    for width in _widths(len(candidates)):
        of_width: list[_Measured] = []
        left = list(ways)
        while left:
            form, count = left.pop(0)
            is_short = not (stacks or of_width) and width * (_WARM + _TURNS) / serial < limit_s  # without it nothing is known
            is_quick = bool(stacks) and again_s < _QUICK * limit_s  # a study pays for a stack that is too small to its end
            if time.perf_counter() - began_s > limit_s and not is_short and not is_quick:
                break
            best_rate = max((one.rate for one in of_width), default=serial)
            found = _stack_rate(group, candidates[:width], count, form, width / max(best_rate, serial))
            if found is not None:
                again_s = found.again_s
                rates[found.name] = found.rate
                of_width.append(found)
            if not left and not stacks and count == threads and of_width:  # other numbers of threads with the better form
                better = max(of_width, key=lambda one: one.rate).form
                left = [(better, other) for other in counts if other != threads]
        stacks += of_width
        fastest = max((one.rate for one in of_width), default=0.0)
        if fastest < _CLOSE * max((one.rate for one in stacks), default=0.0):
            break  # wider stacks do not fit the cache either
        if fastest < serial / _HOPELESS and group.device.type == "cpu":
            break  # this model keeps the cores busy alone
        ways = [(one.form, one.threads) for one in of_width if one.rate >= _PROMISING * fastest]
    return replace(_chosen(stacks, serial, threads, passed, rates), measured_with=len(candidates))


@dataclass(frozen=True)
class _Measured:
    """A stack. `again_s`: what measuring another one takes, for which kernels are there. `degraded`: why it is slower than
    it could be."""

    rate: float
    again_s: float
    width: int
    threads: int
    form: str
    degraded: str

    @property
    def name(self) -> str:
        return f"{self.width} {STACKED}, {_threads(self.threads)}{', convolutions unfolded' if self.form == UNFOLDED else ''}"


def _proofs(group: Group, candidates: Sequence[TrialCandidate], ends_s: float) -> dict[str, StackProof]:
    """Of each form of convolutions that there is time for."""
    found = {GROUPED: prove(group, candidates)}
    for form in convolution_forms(group.job.model):
        if form not in found and not cannot_be_stacked(group) and time.perf_counter() < ends_s:
            found[form] = prove(group, candidates, form)
    return found


def _chosen(
    stacks: Sequence[_Measured], serial: float, threads: int, proofs: Mapping[str, StackProof], rates: dict[str, float]
) -> Layout:
    best = max(stacks, key=lambda one: one.rate, default=None)
    if best is None:
        why = "there was no time, or no memory, to measure a stack"
        return Layout(SERIAL, threads=threads, why=why, proof=next(iter(proofs.values())).words, rates=rates)
    proof = proofs[best.form].words
    if best.rate < _BETTER * serial:
        why = f"{serial:,.0f} trial-steps/s one after another, {best.rate:,.0f} stacked"
        why += ": this model keeps the machine busy alone"
        return Layout(SERIAL, threads=threads, why=why + _aside(best, stacks), proof=proof, rates=rates)
    why = f"{best.rate:,.0f} trial-steps/s with {best.width} in a stack, {serial:,.0f} one after another"
    why += f": {best.rate / serial:.1f}x"
    return Layout(
        STACKED, best.width, best.threads, why=why + _aside(best, stacks), proof=proof, rates=rates, convolutions=best.form,
        nearly_free=_nearly_free([one for one in stacks if (one.form, one.threads) == (best.form, best.threads)]),
    )  # fmt: skip


def _nearly_free(stacks: Sequence[_Measured]) -> int:
    """A GPU may train 64 small trials in about the time of 16: then a rung need not have fewer."""
    fewest = min(stacks, key=lambda one: one.width)
    most = max((one.width for one in stacks if one.width / one.rate <= _HARDLY * fewest.width / fewest.rate), default=0)
    return most if most > fewest.width else 0


def _aside(best: _Measured, stacks: Sequence[_Measured]) -> str:
    """What else is to be said of a stack."""
    others = [one for one in stacks if one.form != best.form and one.width == best.width]
    words = "; convolutions as products of matrices" if best.form == UNFOLDED else ""
    if others:
        gain = best.rate / max(one.rate for one in others)
        words = f"{words or '; grouped convolutions'}, {gain:.1f}x the rate of {_FORM[others[0].form]}"
    return words + (f"; {best.degraded}" if best.degraded else "")


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


def alone_rate(
    group: Group, candidate: TrialCandidate, threads: int, timed_s: float | None = None, wanted_s: float = math.inf
) -> float:
    """Steps a second of one trial. `wanted_s`: of a step that is as fast as the best so far."""
    return 1 / _step_seconds(group, Alone(group, [candidate]).train, threads, timed_s, wanted_s)[0]


def _stack_rate(
    group: Group, candidates: Sequence[TrialCandidate], threads: int, form: str, wanted_s: float
) -> _Measured | None:
    """`wanted_s`: of a step that is as fast as the best so far."""
    began_s = time.perf_counter()
    try:
        stack = TrialStack(group, candidates, form)
        step_s, kernels_s = _step_seconds(group, stack.train, threads, wanted_s=wanted_s)
        again_s = time.perf_counter() - began_s - kernels_s
        return _Measured(len(candidates) / step_s, again_s, len(candidates), threads, form, stack.degraded)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _step_seconds(
    group: Group, train: Callable[[int], None], threads: int, timed_s: float | None = None, wanted_s: float = math.inf
) -> tuple[float, float]:
    """Of one step: the median of several turns, without the first steps, which load kernels and capture graphs. On a device
    also what these took: a machine that is new to them needs seconds, once. On a CPU a step that takes much longer than
    `wanted_s` is not measured again."""
    on_device, done, kernels_s = group.device.type != "cpu", 0, 0.0
    if timed_s is None:
        timed_s = _TIMED_ON_DEVICE_S if on_device else _TIMED_S

    def seconds(steps: int) -> float:
        nonlocal done
        began_s = time.perf_counter()
        done += steps
        train(done)
        synchronize(group.device)
        return time.perf_counter() - began_s

    with group.with_threads(threads):
        warm = min(_WARM, group.total_steps)
        if not on_device and group.total_steps > _FEW_WARM:
            seconds(_FEW_WARM - 1)
            last_s = seconds(1)
            if last_s > _HOPELESS * wanted_s:
                return last_s, 0.0
            warm = max(1, min(warm - _FEW_WARM, group.total_steps - done, int(timed_s / max(last_s, 1e-9))))
        took_s = seconds(warm)
        if on_device and done + warm <= group.total_steps:
            kernels_s, took_s = took_s, seconds(warm)
        most = _A_TURN_ON_DEVICE if on_device else _A_TURN
        steps = max(1, min(most, int(warm * timed_s / 2 / max(took_s, 1e-9))))
        turns, ends_s = list[float](), time.perf_counter() + timed_s
        while done + steps <= group.total_steps and (len(turns) < _TURNS or time.perf_counter() < ends_s):
            turns.append(seconds(steps) / steps)
        return median(turns) if turns else took_s / warm, kernels_s
