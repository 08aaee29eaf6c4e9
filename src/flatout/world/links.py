"""Measured communication speed between processes: within a machine and between machines."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.measure.clock import time_repeats
from flatout.world.world import World

_VALUES = 1 << 22
_REPEATS, _WARMUP = 5, 2
_SMALL_REPEATS = 20


@dataclass(frozen=True)
class LinkRate:
    """Per process: bytes per second sent and received in a ring all-reduce, and the time to all-reduce one value."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Links:
    near: LinkRate  # within a machine
    far: LinkRate  # between machines; the same as `near` if there is only one


def measure_links(world: World, device: torch.device) -> Links:
    """Every process must call this, before `lay_out`."""
    import torch.distributed as dist

    far = _ring(device, world.size, None)
    uneven = len(set(world.gather(world.local_size))) > 1  # no common group size if machines have different process counts
    if uneven or world.local_size in (1, world.size):
        return Links(far, far)
    group, _ = dist.new_subgroups(group_size=world.local_size)  # launchers number ranks machine by machine
    return Links(_ring(device, world.local_size, group), far)


def _ring(device: torch.device, size: int, group: Any) -> LinkRate:
    import torch.distributed as dist

    small = torch.zeros(1, device=device)
    small_s = statistics.median(time_repeats(lambda: dist.all_reduce(small, group=group), _SMALL_REPEATS, _WARMUP, device))
    rate = statistics.median(ring_bytes_per_s(lambda values: dist.all_reduce(values, group=group), size, device))
    return LinkRate(rate, small_s / max(1, 2 * (size - 1)))


def ring_bytes_per_s(sum_: Callable[[Tensor], object], size: int, device: torch.device) -> list[float]:
    """Bytes per second that each of `size` processes sends and receives. Repeats are fixed: all must do the same number."""
    values = torch.zeros(_VALUES, device=device)
    sent_bytes = 2 * (size - 1) / size * values.numel() * values.element_size()
    return [sent_bytes / s for s in time_repeats(lambda: sum_(values), _REPEATS, _WARMUP, device)]
