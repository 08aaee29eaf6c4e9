"""The outputs of several batches of an evaluation as one, because what follows is done trial by trial.

The loss and the metrics of a batch are a dozen small operations, and 256 trials times a dozen batches would take as long as the
training between two evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flatout.data.source import Batch

_MOST_CELLS, _MOST_CELLS_ON_DEVICE = 1 << 22, 1 << 26  # of the outputs of all trials


class JoinedOutputs:
    """Outputs have a leading axis of trials."""

    def __init__(self, device: torch.device) -> None:
        self._most = _MOST_CELLS if device.type == "cpu" else _MOST_CELLS_ON_DEVICE
        self._outputs: list[Tensor] = []
        self._batches: list[Batch] = []

    def add(self, outputs: Any, batch: Batch) -> Iterator[tuple[Any, Batch]]:
        """Gives what is complete."""
        if not _can_be_joined(outputs, batch):
            yield from self.rest()
            yield outputs, batch
            return
        if self._outputs and not (_alike(outputs[0], self._outputs[0][0]) and _all_alike(batch, self._batches[0])):
            yield from self.rest()
        self._outputs.append(outputs)
        self._batches.append({name: column.clone() for name, column in batch.items()})  # a feed may use its memory again
        if sum(one.numel() for one in self._outputs) >= self._most:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[Any, Batch]]:
        if self._outputs:
            together = {name: torch.cat([batch[name] for batch in self._batches]) for name in self._batches[0]}
            yield torch.cat(self._outputs, dim=1), together
            self._outputs, self._batches = [], []


def _can_be_joined(outputs: Any, batch: Batch) -> bool:
    """Whether there is a row of the output for each row of the batch."""
    if not isinstance(outputs, Tensor) or outputs.ndim < 2:
        return False
    return all(column.ndim > 0 and len(column) == outputs.shape[1] for column in batch.values())


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape[1:] == other.shape[1:] and one.dtype == other.dtype


def _all_alike(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(_alike(column, other[name]) for name, column in one.items())
