"""The whole step, gather and update included, as one CUDA graph: one launch from the host instead of hundreds.

The graph reads the next rows, writes its scalars and finds its learning rate at fixed places on the device, so a replay needs
nothing from the host. Warming up runs real kernels; all state is put back afterwards, so that every step of a run, the first
and the one after a resume included, is a replay of the same graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flatout.data.resident import ResidentFeed
from flatout.engine.records import GraphRecords, Records
from flatout.engine.step import Step

_WARMUP_STEPS = 3


class GraphStep:
    def __init__(self, step: Step, feed: ResidentFeed, rows: int, slots: int) -> None:
        self.step = step
        self.feed = feed
        self.rows = rows
        self.records = GraphRecords(step.device, slots, compiled=step.compiled)
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, saved_state: Callable[[], list[Tensor]], restore: Callable[[list[Tensor]], None]) -> None:
        """`saved_state` copies all that a step changes, `restore` puts it back (new optimizer state as it was born: zeros)."""
        before, position = saved_state(), self.feed.position
        self.step.warm(self.rows)
        self.step.records = self.records
        try:
            self._record()
        except RuntimeError:
            self.step.optimizer.zero_grad(set_to_none=True)  # they lie in the memory of the graph that came to nothing
            _leave_capture(self.step.device)
            raise
        finally:
            self.step.records = Records()
            restore(before)
            self.feed.seek(position)
            self.reload()

    def _record(self) -> None:
        self.feed.load()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARMUP_STEPS):
                self.step.attempt(self.feed.capture_next(), self.rows)
        torch.cuda.current_stream().wait_stream(side)
        self.step.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self._graph):
            self.step.attempt(self.feed.capture_next(), self.rows)

    def reload(self) -> None:
        """After the feed was moved."""
        self.feed.load()
        self.records.reset()

    def __call__(self) -> None:
        self._graph.replay()
        self.feed.replayed()
        self.records.replayed()


def _leave_capture(device: torch.device) -> None:
    """A capture that fails leaves the device's random numbers believing that it still runs: they go on from a copy."""
    with torch.cuda.device(device):
        numbers = torch.cuda.default_generators[torch.cuda.current_device()]
    numbers.graphsafe_set_state(numbers.clone_state())
