"""What a run, or a trial of one, changes about the whole process while it lasts. Everything is put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

from flatout.engine.determinism import compiler_loaded, deterministic_kernels, own_random_state, seed_of
from flatout.engine.memory import allocator
from flatout.engine.settings import Settings
from flatout.engine.signals import StopRequest, watch_signals
from flatout.world.world import World

_KEPT_OUT = "__dynamo_disable"  # where torch remembers how to call a function past its compiler


@contextmanager
def run_set_up(settings: Settings, seed: int, world: World) -> Iterator[StopRequest]:
    """For a run of the processes of this world. Signals ask it to stop."""
    with watch_signals() as stop, compiler_left_out(), process_set_up(settings, seed_of(seed, world)):
        yield stop


@contextmanager
def process_set_up(settings: Settings, seed: int) -> Iterator[None]:
    """Random numbers, kernels, the precision of matrix products and the allocator, as the settings say."""
    device = torch.device(settings.device)
    with (
        own_random_state(seed, device),
        deterministic_kernels(settings.deterministic, compiled=settings.compile != "off"),
        matmul_precision(settings.precision),
        allocator(settings.allocator, device),
    ):
        yield


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """tf32 for float32 matrix products wherever anything but fp32 was asked for; put back afterwards."""
    before = torch.get_float32_matmul_precision()
    cudnn_before = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = cudnn_before


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Within, using an optimizer does not load torch's compiler, which takes seconds.

    Torch keeps its compiler out of some of its own functions, such as those of its optimizers, and the first call of one of
    them loads the compiler to tell it so. As long as the compiler isn't there, it needs no telling.
    """
    wrapped = (Optimizer.add_param_group, Optimizer.state_dict, Optimizer.load_state_dict, Optimizer.zero_grad)
    plain = [one.__wrapped__ for one in wrapped if hasattr(one, "__wrapped__")]
    marked = [] if compiler_loaded() else [one for one in plain if not hasattr(one, _KEPT_OUT)]
    for one in marked:
        setattr(one, _KEPT_OUT, one)
    try:
        yield
    finally:
        for one in marked:
            delattr(one, _KEPT_OUT)
