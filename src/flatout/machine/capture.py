"""Capturing a CUDA graph, so that one that fails leaves the process as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def captured(device: torch.device) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what is called within, on a stream of torch's own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        before = torch.cuda.current_stream()
        try:
            with _no_garbage(), torch.cuda.graph(graph):
                yield graph
        except BaseException:
            torch.cuda.set_stream(before)  # torch goes back to it only after a capture that went well
            leave_capture(device)
            raise


@contextmanager
def _no_garbage() -> Iterator[None]:
    """An earlier graph that is collected in the middle of a capture gives back memory, which ends the capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def leave_capture(device: torch.device) -> None:
    """A capture that fails leaves the device's random numbers believing that it still runs: they go on from a copy."""
    with torch.cuda.device(device):
        numbers = torch.cuda.default_generators[torch.cuda.current_device()]
    numbers.graphsafe_set_state(numbers.clone_state())
