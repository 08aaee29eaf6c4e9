"""Kinds of devices and links, from published figures. Nothing was measured here.

Peaks and memory: the makers' data sheets, dense. `matmul_flops`: the best of a search over shapes in bf16 (ml-engineering by
Stas Bekman, "Maximum Achievable Matmul FLOPS": A100 SXM, H100 SXM, B200); an H200 has the H100's chip and is assumed equal, and
shares of the others are assumed. `attention_flops`: as reported for FlashAttention-2 (arXiv 2307.08691: 225 TFLOP/s on an A100,
335 on an H100), else about half of the matmul rate. A link is a latency and a rate (alpha and beta); latencies, and the share
of the rate that a collective reaches, are assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.base.errors import UsageError, did_you_mean
from flatout.plan.layouts.constants import POWER_500W

T = 1e12
GB = 1e9


@dataclass(frozen=True)
class Link:
    """To and from one device, per direction."""

    name: str
    latency_s: float
    bytes_per_s: float  # nominal
    share: float = 0.8  # reached in a large collective: assumed, typical of nccl-tests

    @property
    def useful_bytes_per_s(self) -> float:
        return self.bytes_per_s * self.share


@dataclass(frozen=True)
class DeviceKind:
    name: str
    words: str
    memory_bytes: float
    bytes_per_s: float
    peak_flops: float
    matmul_flops: float
    attention_flops: float
    inside: str  # link to other devices in its node
    between: str  # default link to other nodes
    per_node: int = 8
    float8: bool = False
    power: float = 1.0  # share of its arithmetic under a power limit


LINKS = {
    link.name: link
    for link in (
        Link("nvlink5", 4e-6, 900 * GB),
        Link("nvlink4", 4e-6, 450 * GB),
        Link("nvlink3", 4e-6, 300 * GB),
        Link("pcie5", 8e-6, 63 * GB),
        Link("pcie4", 8e-6, 31.5 * GB),
        Link("infiniband-ndr", 8e-6, 50 * GB),  # 400 Gbit/s
        Link("infiniband-hdr", 8e-6, 25 * GB),  # 200 Gbit/s
        Link("ethernet-100g", 25e-6, 12.5 * GB),
        Link("ethernet-25g", 30e-6, 3.125 * GB),
        Link("ethernet-10g", 50e-6, 1.25 * GB),
        Link("ethernet-1g", 50e-6, 0.125 * GB),
    )
}

KINDS = {
    kind.name: kind
    for kind in (
        DeviceKind(
            "b200", "NVIDIA B200 SXM, 180 GB", 180 * GB, 8.0 * T, 2250 * T, 1745 * T, 870 * T, "nvlink5", "infiniband-ndr",
            float8=True,
        ),
        DeviceKind(
            "h200", "NVIDIA H200 SXM, 141 GB", 141 * GB, 4.8 * T, 989 * T, 794.5 * T, 335 * T, "nvlink4", "infiniband-ndr",
            float8=True,
        ),
        DeviceKind(
            "h100", "NVIDIA H100 SXM, 80 GB", 80 * GB, 3.35 * T, 989 * T, 794.5 * T, 335 * T, "nvlink4", "infiniband-ndr",
            float8=True,
        ),
        # in Grand Teton machines: HBM2e at 2.4 TB/s, limited to 500 W; `power` is fitted, see constants.py
        DeviceKind(
            "h100-500w", "NVIDIA H100 SXM, 96 GB of HBM2e, 500 W", 96 * GB, 2.4 * T, 989 * T, 794.5 * T, 335 * T, "nvlink4",
            "infiniband-ndr", float8=True, power=POWER_500W,
        ),
        DeviceKind(
            "h100-pcie", "NVIDIA H100 PCIe, 80 GB", 80 * GB, 2.0 * T, 756 * T, 0.6 * 756 * T, 256 * T, "pcie5",
            "infiniband-hdr", float8=True,
        ),
        DeviceKind(
            "a100", "NVIDIA A100 SXM, 80 GB", 80 * GB, 2.04 * T, 312 * T, 267.9 * T, 225 * T, "nvlink3", "infiniband-hdr"
        ),
        DeviceKind(
            "a100-40gb", "NVIDIA A100 SXM, 40 GB", 40 * GB, 1.56 * T, 312 * T, 267.9 * T, 225 * T, "nvlink3", "infiniband-hdr"
        ),
        DeviceKind(
            "l40s", "NVIDIA L40S, 48 GB", 48 * GB, 0.864 * T, 362 * T, 0.7 * 362 * T, 127 * T, "pcie4", "ethernet-100g",
            float8=True,
        ),
    )
}  # fmt: skip


def device_kind(name: str) -> DeviceKind:
    found = KINDS.get(name.strip().lower())
    if found is None:
        raise UsageError(f"unknown device kind {name!r}: {did_you_mean(name.strip().lower(), KINDS)}")
    return found


def link_named(name: str) -> Link:
    found = LINKS.get(name.strip().lower())
    if found is None:
        raise UsageError(f"unknown link {name!r}: {did_you_mean(name.strip().lower(), LINKS)}")
    return found
