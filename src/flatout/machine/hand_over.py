"""Time to receive a batch that a DataLoader worker has ready, measured with a real worker."""

from __future__ import annotations

import math
import time
import warnings

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flatout.base.units import show_bytes
from flatout.machine.rates import Unavailable, first_line

USUAL_HAND_OVER_S = 1e-3  # for a small batch, on a CPU with two cores
_BATCHES, _FIRST = 10, 2
_MOST_BYTES = 2**24  # above this, time grows in proportion
_PATIENCE_S = 1.0
_READY_S, _READY_BYTES_PER_S = 2e-3, 1e9  # time for a worker to prepare the next batch
_PAGE = 4096


class _OneBatch(Dataset[Tensor]):
    def __init__(self, size_bytes: int) -> None:
        self._batch = torch.ones(size_bytes, dtype=torch.uint8)

    def __len__(self) -> int:
        return _BATCHES

    def __getitem__(self, number: int) -> Tensor:
        return self._batch


def hand_over_key(size_bytes: float) -> str:
    return f"hand_over of {show_bytes(_rounded(size_bytes))}, seconds"


def hand_over_seconds(size_bytes: float) -> list[float]:
    """Seconds for each of several batches of about this size. The worker is forked, as DataLoader does on Linux."""
    size = _rounded(size_bytes)
    tried = min(size, _MOST_BYTES)
    ready_s = _READY_S + tried / _READY_BYTES_PER_S
    taken_s = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about forking a process with threads
            loader = DataLoader(
                _OneBatch(tried),
                batch_size=None,
                num_workers=1,
                multiprocessing_context="fork",
                timeout=_PATIENCE_S,
                generator=torch.Generator(),  # else it would use the script's random generator
            )
            batches = iter(loader)
            for _ in range(_BATCHES):
                time.sleep(ready_s)
                began_s = time.perf_counter()
                batch = next(batches)
                batch[::_PAGE].sum()  # touch every page, because pages are mapped on first read
                del batch
                taken_s.append(time.perf_counter() - began_s)
            del batches
    except (RuntimeError, OSError, ValueError, AssertionError) as error:
        raise Unavailable(first_line(error)) from error
    return [one_s * size / tried for one_s in taken_s[_FIRST:]]


def _rounded(size_bytes: float) -> int:
    """Rounded to a power of four: batches of similar size take about the same time."""
    return int(4 ** max(6, math.ceil(math.log(max(size_bytes, 1), 4))))
