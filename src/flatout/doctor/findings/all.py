"""All findings that the doctor looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.doctor.findings import (
    allocator_thrash,
    anomaly_detection,
    blocking_copy,
    broadcast_loss,
    channels_first,
    chatty_logging,
    copied_targets,
    costly_line,
    data_parallel,
    dense_embedding,
    double_precision,
    duplicate_seeds,
    eval_mode_in_training,
    evaluated_on_training_data,
    fp16_unscaled,
    fp32_matmul,
    frequent_evaluation,
    grad_in_eval,
    graph_breaks,
    hardware,
    host_sync,
    launch_bound,
    memory_growth,
    new_iterator,
    no_workers,
    not_finite,
    operators_in_loop,
    oversubscribed_threads,
    pageable_copy,
    recompiles,
    refused_by_loss,
    restarted_workers,
    sample_by_sample,
    slow_checkpoint,
    slow_convolutions,
    slow_python,
    slow_transform,
    slow_writes,
    small_batch,
    sorted_data,
    stepping_without_gradients,
    too_many_workers,
    train_mode_in_eval,
    unfused_optimizer,
    untrained_weights,
    unused_parameters,
    vanished_learning_rate,
)

_MODULES = (
    no_workers, sample_by_sample, too_many_workers, restarted_workers, slow_transform, pageable_copy, blocking_copy,
    host_sync, chatty_logging, slow_writes,
    fp32_matmul, fp16_unscaled, channels_first, slow_convolutions,
    unfused_optimizer, launch_bound, graph_breaks, recompiles, small_batch, allocator_thrash,
    memory_growth, grad_in_eval, train_mode_in_eval, duplicate_seeds, data_parallel, unused_parameters, slow_checkpoint,
    oversubscribed_threads, operators_in_loop, slow_python, costly_line, anomaly_detection, double_precision, dense_embedding,
    new_iterator, refused_by_loss, copied_targets, broadcast_loss, stepping_without_gradients, untrained_weights,
    evaluated_on_training_data, eval_mode_in_training, not_finite, sorted_data, vanished_learning_rate, frequent_evaluation,
    hardware,
)  # fmt: skip
FINDINGS: tuple[Callable[[Case], Iterator[Finding]], ...] = tuple(module.look for module in _MODULES)
