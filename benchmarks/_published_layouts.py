"""Runs that others published, as layouts: what the constants are fitted on, and what they are scored on.

All are torchtitan's. Rates are tokens a second and device, memory is the peak that the allocator reserved, in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from _described_transformers import described, shape_of_transformer

from flatout.plan.layouts.estimate import Cluster, Estimate, TrainingLoad, estimate
from flatout.plan.layouts.layout import ParallelLayout
from flatout.plan.layouts.timing import Constants

GIB = 2**30
MEMORY_BAR, RATE_BAR = 0.15, 0.25


@dataclass(frozen=True)
class Row:
    name: str
    model: str
    kind: str
    layout: ParallelLayout
    local_batch: int  # rows of each rank that gets its own
    rate: float
    memory_gib: float | None = None
    length: int = 8192
    fits: str = ""  # which figures the constants were fitted on
    source: str = ""
    note: str = ""

    @property
    def scored_rate(self) -> bool:
        return "rate" not in self.fits

    @property
    def scored_memory(self) -> bool:
        return self.memory_gib is not None and "memory" not in self.fits


def foretell(row: Row, fitted: Constants | None = None, power: float | None = None) -> Estimate:
    shape = shape_of_transformer(described(row.model), row.length)
    cluster = Cluster.of(row.kind)
    if power is not None and cluster.kind.power != 1.0:
        cluster = replace(cluster, kind=replace(cluster.kind, power=power))
    return estimate(shape, row.layout, TrainingLoad(row.local_batch * row.layout.rows_split), cluster, fitted)


_2024 = "torchtitan benchmarks/llama3_h100_202412_torchtitan.md"
_ASYNC = "torchtitan benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md"
_H200 = "torchtitan benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
_OLD = "torchtitan docs/performance.md of 2024-12-03"
_8B, _70B, _405B = "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"
_H100 = "h100-500w"


def _sharded(shard: int, **how: object) -> ParallelLayout:
    return replace(ParallelLayout(shard=shard, micro_batch=2, recompute="selective"), **how)  # type: ignore[arg-type]


def _compiled(layout: ParallelLayout, **how: object) -> ParallelLayout:
    return replace(layout, compiled=True, **how)  # type: ignore[arg-type]


_F8 = {"float8": True}
_8 = _sharded(8)
_128 = _sharded(128)
_70 = ParallelLayout(shard=32, tensor=8, micro_batch=16, recompute="full", compiled=True)
_TP8 = ParallelLayout(shard=8, tensor=8, micro_batch=12, recompute="selective", compiled=True, compiled_loss=True)
_70L = replace(_70, compiled_loss=True)
_405 = ParallelLayout(
    shard=8, tensor=8, pipeline=8, micro_batch=4, recompute="full", compiled=True, float8=True, async_tensor=True
)  # fmt: skip
_128_405 = ParallelLayout(shard=16, tensor=8, micro_batch=2, recompute="full", compiled=True)
_AFTER = "memory: what a loss split by vocabulary holds was counted after this row had been missed"
_STATED = "network not stated: 200 Gbit/s a device assumed"

ROWS = (
    Row("8B, 8 H100", _8B, _H100, _8, 2, 5762, 82.4, fits="rate, memory", source=_2024),
    Row("8B, 8 H100, compiled", _8B, _H100, _compiled(_8), 2, 6667, 77.0, fits="rate, memory", source=_2024),
    Row("8B, 8 H100, compiled, float8", _8B, _H100, _compiled(_8, **_F8), 2, 8532, 76.8, fits="rate, memory", source=_2024),
    Row(
        "8B, 64 H200, compiled, float8", _8B, "h200", _compiled(_sharded(64), compiled_loss=True, **_F8), 2, 10753, 46.97,
        fits="rate", source=_H200,
    ),
    Row(
        "8B, 32 H200, compiled, float8", _8B, "h200", _compiled(_sharded(32), compiled_loss=True, **_F8), 2, 10938, 47.96,
        source=_H200,
    ),
    Row("8B, 128 H100", _8B, _H100, _128, 2, 5605, 67.0, source=_2024),
    Row("8B, 128 H100, compiled", _8B, _H100, _compiled(_128), 2, 6514, 62.0, source=_2024),
    Row("8B, 128 H100, compiled, float8", _8B, _H100, _compiled(_128, **_F8), 2, 8380, 61.8, source=_2024),
    Row(
        "8B, 8 H100, 32k tokens, compiled, float8", _8B, _H100,
        ParallelLayout(shard=8, recompute="full", compiled=True, float8=True), 1, 3890, 83.9, length=32768, source=_2024,
    ),
    Row("70B, 256 H100, tensor 8, float8", _70B, _H100, replace(_70, float8=True), 16, 829, 71.9, source=_2024, note=_AFTER),
    Row(
        "70B, 256 H100, async tensor 8, float8", _70B, _H100, replace(_70, float8=True, async_tensor=True), 16, 876, 67.6,
        source=_2024, note=_AFTER,
    ),
    Row("405B, 512 H100, tensor 8, 1F1B 8", _405B, _H100, _405, 32, 100, 82.5, source=_2024),
    Row(
        "405B, 512 H100, tensor 8, interleaved 8", _405B, _H100, replace(_405, schedule="interleaved", chunks=2), 32, 128, 72.7,
        source=_2024,
    ),
    Row(
        "405B, 512 H100, tensor 8, 1F1B 8, 32k tokens", _405B, _H100, replace(_405, micro_batch=1), 8, 76, 75.3, length=32768,
        source=_2024,
    ),
    Row("70B, 256 H100, tensor 8", _70B, _H100, _70L, 16, 597.3, source=_ASYNC),
    Row("70B, 256 H100, async tensor 8", _70B, _H100, replace(_70L, async_tensor=True), 16, 652.4, source=_ASYNC),
    Row("70B, 256 H100, tensor 8, float8 (2025)", _70B, _H100, replace(_70L, float8=True), 16, 809.8, source=_ASYNC),
    Row(
        "70B, 256 H100, async tensor 8, float8 (2025)", _70B, _H100, replace(_70L, float8=True, async_tensor=True), 16, 942.4,
        source=_ASYNC,
    ),
    Row("8B, 64 H100, tensor 8", _8B, _H100, _TP8, 12, 4378, source=_ASYNC),
    Row("8B, 64 H100, async tensor 8", _8B, _H100, replace(_TP8, async_tensor=True), 12, 4809.4, source=_ASYNC),
    Row("8B, 64 H100, tensor 8, float8", _8B, _H100, replace(_TP8, float8=True), 12, 5078.1, source=_ASYNC),
    Row(
        "8B, 64 H100, async tensor 8, float8", _8B, _H100, replace(_TP8, float8=True, async_tensor=True), 12, 5570.1,
        source=_ASYNC,
    ),
    Row("405B, 128 H100, tensor 8", _405B, _H100, _128_405, 2, 109, source=_OLD),
    Row("405B, 128 H100, tensor 8, float8", _405B, _H100, replace(_128_405, float8=True), 2, 177, source=_OLD),
    Row(
        "405B, 128 H100, async tensor 8, float8", _405B, _H100, replace(_128_405, float8=True, async_tensor=True), 2, 185,
        source=_OLD,
    ),
    Row("8B, 64 A100", _8B, "a100", _sharded(64, micro_batch=1), 1, 2973, source=_OLD, note=_STATED),
    Row("70B, 64 A100", _70B, "a100", _sharded(64, micro_batch=1, recompute="full"), 1, 331, source=_OLD, note=_STATED),
)  # fmt: skip
FITTED = tuple(row for row in ROWS if row.fits)
