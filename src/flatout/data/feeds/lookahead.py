"""The rows of the positions to come, made by the 64k and handed out in slices."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.data.order.order import Sampler

BLOCK_ROWS = 1 << 16
BLOCK_STEPS = 256  # on a device making indices costs a fixed number of launches, so more at a time


def block_rows(batch: int, device: torch.device) -> int:
    """How many rows to make at a time."""
    steps = 1 if device.type == "cpu" else BLOCK_STEPS
    return max(BLOCK_ROWS, steps * batch)


class Lookahead:
    def __init__(self, sampler: Sampler, device: torch.device) -> None:
        self._sampler = sampler
        self._device = device
        self._start = self._stop = 0
        self._rows = self._visits = torch.empty(0, dtype=torch.int64, device=device)

    def rows(self, start: int, stop: int) -> Tensor:
        if start < self._start or stop > self._stop:
            self._fill(start, start + block_rows(stop - start, self._device))
        return self._rows[start - self._start : stop - self._start]

    def visits(self, start: int, stop: int) -> Tensor:
        """For the positions last asked for as rows; made on first use, since only transforms need them."""
        if len(self._visits) != len(self._rows):
            self._visits = self._sampler.visits(self._start, self._stop, self._device)
        return self._visits[start - self._start : stop - self._start]

    def _fill(self, start: int, stop: int) -> None:
        self._start, self._stop = start, stop
        self._rows = self._sampler.rows(start, stop, self._device)
        self._visits = self._rows[:0]
