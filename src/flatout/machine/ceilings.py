"""The best speeds of this machine, measured here. A share of a ceiling refers to these numbers, not to a data sheet."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flatout.machine import rates
from flatout.machine.rates import Unavailable
from flatout.measure.stats import summarize

Outcome = list[float] | tuple[list[float], str]  # repeats, and a note


@dataclass(frozen=True)
class MeasuredRate:
    """A median of `n` repeats and its 95% interval."""

    value: float
    low: float
    high: float
    n: int
    note: str = ""

    @classmethod
    def of(cls, values: Sequence[float], note: str = "") -> MeasuredRate:
        summary = summarize(values)
        return cls(summary.median, summary.low, summary.high, summary.n, note)


@dataclass(frozen=True)
class Ceilings:
    """None: unavailable; `unavailable` has the reason under the same name ("matmul fp8" for a matmul format)."""

    device: str
    matmul_flops: Mapping[str, MeasuredRate]
    copy_bytes_per_s: MeasuredRate | None = None
    host_to_device_pinned_bytes_per_s: MeasuredRate | None = None
    host_to_device_pageable_bytes_per_s: MeasuredRate | None = None
    device_to_host_bytes_per_s: MeasuredRate | None = None
    peer_bytes_per_s: MeasuredRate | None = None
    network_bytes_per_s: MeasuredRate | None = None
    launch_s: MeasuredRate | None = None
    disk_read_bytes_per_s: MeasuredRate | None = None
    operator_s: MeasuredRate | None = None
    kernel_s: MeasuredRate | None = None
    idle_w: MeasuredRate | None = None
    operators: Mapping[str, float | None] = field(default_factory=dict)  # seconds by `Call.key`; None: can't be timed
    gains: Mapping[str, float | None] = field(default_factory=dict)  # by `gain_key`; None: can't be measured
    unavailable: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Ceilings:
        known = dict(written)
        known["matmul_flops"] = {name: MeasuredRate(**rate) for name, rate in written["matmul_flops"].items()}
        for name in RATES:
            known[name] = None if written.get(name) is None else MeasuredRate(**written[name])
        return cls(**known)


_NO_RATES = ("device", "matmul_flops", "operators", "gains", "unavailable")
RATES = tuple(one.name for one in fields(Ceilings) if one.name not in _NO_RATES)


def measure_ceilings(
    device: torch.device,
    quick: bool = False,
    *,
    folder: Path | None = None,
    network: Callable[[], list[float]] | None = None,
) -> Ceilings:
    """`quick` uses fewer repeats and smaller sizes: under 4 s on two CPU cores, else under 25 s. `folder`: on the disk to read.
    `network`: measures bytes per second between the processes of a run."""
    limit_s = 0.1 if quick else 1.0
    largest = 8192 if device.type != "cpu" else 1024 if quick else 2048
    unavailable: dict[str, str] = {}

    def measured(name: str, measure: Callable[[], Outcome]) -> MeasuredRate | None:
        return _measured(name, measure, unavailable)

    def link(name: str, *, pinned: bool, to_device: bool) -> MeasuredRate | None:
        return measured(name, lambda: rates.link_bytes_per_s(device, limit_s, pinned=pinned, to_device=to_device))

    idle_w = measured("idle_w", lambda: rates.idle_watts(device, limit_s))  # first: nothing is warm yet
    products = {
        name: measured(f"matmul {name}", partial(rates.matmul_flops_per_s, name, device, limit_s, largest))
        for name in rates.MATMUL_DTYPES
    }
    disk_folder, disk_bytes = folder or Path(tempfile.gettempdir()), 2**25 if quick else 2**28
    return Ceilings(
        device=str(device),
        matmul_flops={name: rate for name, rate in products.items() if rate is not None},
        copy_bytes_per_s=measured("copy_bytes_per_s", lambda: rates.copy_bytes_per_s(device, limit_s)),
        host_to_device_pinned_bytes_per_s=link("host_to_device_pinned_bytes_per_s", pinned=True, to_device=True),
        host_to_device_pageable_bytes_per_s=link("host_to_device_pageable_bytes_per_s", pinned=False, to_device=True),
        device_to_host_bytes_per_s=link("device_to_host_bytes_per_s", pinned=True, to_device=False),
        peer_bytes_per_s=measured("peer_bytes_per_s", lambda: rates.peer_bytes_per_s(device, limit_s)),
        network_bytes_per_s=measured("network_bytes_per_s", network or _no_network),
        launch_s=measured("launch_s", lambda: rates.launch_seconds(device, limit_s)),
        disk_read_bytes_per_s=measured("disk_read_bytes_per_s", lambda: rates.disk_bytes_per_s(disk_folder, disk_bytes, 3)),
        operator_s=measured("operator_s", lambda: rates.operator_seconds(device, limit_s)),
        kernel_s=measured("kernel_s", lambda: rates.kernel_seconds(device, limit_s)),
        idle_w=idle_w,
        unavailable=unavailable,
    )


def _measured(name: str, measure: Callable[[], Outcome], unavailable: dict[str, str]) -> MeasuredRate | None:
    try:
        outcome = measure()
    except Unavailable as reason:
        unavailable[name] = str(reason)
        return None
    return MeasuredRate.of(*outcome) if isinstance(outcome, tuple) else MeasuredRate.of(outcome)


def _no_network() -> list[float]:
    raise Unavailable("only one process")
