"""CUDA graph capture that leaves the process usable after a failure."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def captured(device: torch.device) -> Iterator[torch.cuda.CUDAGraph]:
    """Captures everything called inside the `with` block, on a stream that torch makes for it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        before = torch.cuda.current_stream()
        try:
            with _no_garbage(), torch.cuda.graph(graph):
                yield graph
        except BaseException:
            torch.cuda.set_stream(before)  # torch restores the stream only after a successful capture
            leave_capture(device)
            raise


@contextmanager
def _no_garbage() -> Iterator[None]:
    """No garbage collection during capture: freeing an earlier graph would release memory, which aborts the capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def leave_capture(device: torch.device) -> None:
    """After a failed capture the device's random generator still acts as if capturing: replace its state with a copy."""
    with torch.cuda.device(device):
        numbers = torch.cuda.default_generators[torch.cuda.current_device()]
    numbers.graphsafe_set_state(numbers.clone_state())
