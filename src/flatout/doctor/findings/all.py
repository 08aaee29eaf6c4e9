"""All findings that the doctor looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.findings import (
    allocator_thrash,
    blocking_copy,
    channels_first,
    chatty_logging,
    data_parallel,
    duplicate_seeds,
    fp16_unscaled,
    fp32_matmul,
    grad_in_eval,
    graph_breaks,
    hardware,
    host_sync,
    launch_bound,
    memory_growth,
    no_workers,
    oversubscribed_threads,
    pageable_copy,
    recompiles,
    restarted_workers,
    sample_by_sample,
    slow_checkpoint,
    slow_convolutions,
    slow_python,
    slow_transform,
    slow_writes,
    small_batch,
    too_many_workers,
    train_mode_in_eval,
    unfused_optimizer,
    unused_parameters,
)

_MODULES = (
    no_workers, sample_by_sample, too_many_workers, restarted_workers, slow_transform, pageable_copy, blocking_copy,
    host_sync, chatty_logging, slow_writes,
    fp32_matmul, fp16_unscaled, channels_first, slow_convolutions,
    unfused_optimizer, launch_bound, graph_breaks, recompiles, small_batch, allocator_thrash,
    memory_growth, grad_in_eval, train_mode_in_eval, duplicate_seeds, data_parallel, unused_parameters, slow_checkpoint,
    oversubscribed_threads, slow_python, hardware,
)  # fmt: skip
FINDINGS: tuple[Callable[[Case], Iterator[Finding]], ...] = tuple(module.look for module in _MODULES)
