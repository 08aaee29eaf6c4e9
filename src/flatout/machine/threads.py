"""How many threads torch computes with on a CPU: how many it may use here, who fixed that, and which number is fastest now.

More threads are not always faster. A small step pays more for waking them than it gains, and on cores that other processes use,
each operator waits until the slowest thread gets its turn.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from flatout.machine.host import usable_cores

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # read by torch when it is loaded
_ROUNDS, _FEWEST = 9, 5
_PATIENCE_S = 0.5  # beyond the limit, for the fewest rounds
_CHUNK_S = 0.004  # timed at once: about as long as a turn of the scheduler
_FASTER = 1.04  # fewer threads must be faster by this factor, in most rounds


@dataclass(frozen=True)
class ThreadTimes:
    """Seconds of a step by number of threads, measured in turns."""

    step_s: Mapping[int, Sequence[float]]

    def fastest(self, *, busy: bool = False) -> int:
        """The largest number, unless a smaller one is clearly faster. On busy cores the fastest in all: what a larger number
        gains there is luck, and what it can lose is a factor of ten."""
        if busy:
            return max(sorted(self.step_s), key=self.gain)
        most = max(self.step_s)
        faster = [count for count in self.step_s if self._is_clearly_faster(count, most)]
        return max(faster, key=self.gain, default=most)

    def gain(self, count: int, over: int | None = None) -> float:
        """How many times as fast as with `over` threads; without it, as with most. Of all rounds together: waiting for a core
        comes in few and long pauses, which a median would leave out."""
        other = max(self.step_s) if over is None else over
        return sum(self.step_s[other]) / sum(self.step_s[count])

    def _is_clearly_faster(self, count: int, other: int) -> bool:
        pairs = list(zip(self.step_s[count], self.step_s[other], strict=True))
        wins = sum(one < two for one, two in pairs)
        return self.gain(count, other) >= _FASTER and wins > len(pairs) / 2


def fixed_from_outside() -> str:
    """What fixed the number of threads before torch was loaded, such as OMP_NUM_THREADS=2; empty: nothing did."""
    return next((f"{name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name)), "")


def most_threads() -> int:
    """No more than torch would use, and than the cores that this process may use. torch does not know a container's quota."""
    return min(torch.get_num_threads(), usable_cores())


def counts_to_try(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `most`."""
    return (*(2**power for power in range(most.bit_length()) if 2**power < most), most)


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """0: as many as before."""
    before = torch.get_num_threads()
    if count and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def time_counts(step: Callable[[], object], counts: Sequence[int], limit_s: float) -> ThreadTimes:
    """Time `step` with each number of threads, in turns, for about `limit_s`; at least five times each, if steps are short."""
    began_s, firsts_s = time.perf_counter(), {count: _seconds(step, count, 1) for count in counts}  # untimed: kernels load
    firsts_s = {count: _seconds(step, count, 1) for count in counts}
    steps = {count: max(1, math.ceil(_CHUNK_S / max(first_s, 1e-6))) for count, first_s in firsts_s.items()}
    found: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(_ROUNDS):
        for count in counts[:: -1 if turn % 2 else 1]:
            found[count].append(_seconds(step, count, steps[count]) / steps[count])
        over_s = time.perf_counter() - began_s - limit_s
        if (turn and over_s > _PATIENCE_S) or (turn >= _FEWEST - 1 and over_s > 0):
            break
    return ThreadTimes(found)


def time_small_step(counts: Sequence[int], limit_s: float = 0.1) -> ThreadTimes:
    """Of a small network: what a change of threads is worth just now, where the training step must not be repeated."""
    numbers = torch.Generator().manual_seed(0)
    layers = [nn.utils.skip_init(nn.Linear, 64, 64) for _ in range(3)]
    network = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    for weights in network.parameters():
        weights.detach().normal_(0, 0.1, generator=numbers)
    x = torch.randn(64, 64, generator=numbers)

    def step() -> None:
        network.zero_grad()
        network(x).sum().backward()

    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        return time_counts(step, counts, limit_s)


def _seconds(step: Callable[[], object], count: int, steps: int) -> float:
    with cpu_threads(count):
        began_s = time.perf_counter()
        for _ in range(steps):
            step()
        return time.perf_counter() - began_s
