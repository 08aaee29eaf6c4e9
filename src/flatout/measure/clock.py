"""Timing: device clocks on an accelerator, the monotonic clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from types import TracebackType

import torch


def synchronize(device: torch.device) -> None:
    """Wait until all work queued on `device` is done. A CPU queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class Stopwatch:
    """Seconds of a `with` block, or so far while the block is open. With a device, both ends wait for its queued work."""

    def __init__(self, device: torch.device | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._clock = clock
        self._began_s = clock()
        self._ended_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        return (self._clock() if self._ended_s is None else self._ended_s) - self._began_s

    def __enter__(self) -> Stopwatch:
        self._settle()
        self._ended_s = None
        self._began_s = self._clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:  # after an error the device may not respond, and waiting would hide the error
            self._settle()
        self._ended_s = self._clock()

    def _settle(self) -> None:
        if self._device is not None:
            synchronize(self._device)


def time_repeats(fn: Callable[[], object], n: int, warmup: int, device: torch.device) -> list[float]:
    """Seconds of each of `n` calls, after `warmup` untimed ones."""
    for _ in range(warmup):
        fn()
    synchronize(device)
    return _time_on_host(fn, n) if device.type == "cpu" else _time_on_device(fn, n, device)


def _time_on_host(fn: Callable[[], object], n: int) -> list[float]:
    seconds = []
    for _ in range(n):
        began_s = time.perf_counter()
        fn()
        seconds.append(time.perf_counter() - began_s)
    return seconds


def _time_on_device(fn: Callable[[], object], n: int, device: torch.device) -> list[float]:
    # The device stamps the events and nothing waits between the calls, so the queue stays as full as in training.
    stream = torch.accelerator.current_stream(device)
    marks = [torch.Event(device.type, enable_timing=True) for _ in range(n + 1)]
    marks[0].record(stream)
    for mark in marks[1:]:
        fn()
        mark.record(stream)
    synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]
