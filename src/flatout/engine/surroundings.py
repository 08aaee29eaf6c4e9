"""What a run, or a trial of one, changes about the whole process while it lasts, and puts back afterwards.

Signal handlers, random numbers, deterministic kernels, the precision of matrix products and the allocator of device memory.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from flatout.data.order.keyed import keyed
from flatout.engine.settings import Settings
from flatout.engine.signals import StopRequest, watch_signals
from flatout.machine.onednn import onednn_kept
from flatout.machine.threads import cpu_threads
from flatout.world.world import World

_DTYPES_OF = {"bf16": (torch.bfloat16,), "fp16": (torch.float16,)}
_KEPT_OUT = "__dynamo_disable"  # the attribute where torch stores the uncompiled version of a function


@contextmanager
def run_set_up(settings: Settings, seed: int, world: World) -> Iterator[StopRequest]:
    """For a run. Signals set the stop request."""
    with watch_signals() as stop, compiler_left_out(), process_set_up(settings, seed_of(seed, world)):
        yield stop


@contextmanager
def process_set_up(settings: Settings, seed: int) -> Iterator[None]:
    """Threads, random numbers, kernels, the precision of matrix products and the allocator, from the settings."""
    device = torch.device(settings.device)
    with (
        cpu_threads(settings.threads),
        own_random_state(seed, device),
        deterministic_kernels(settings.deterministic, compiled=settings.compile != "off"),
        matmul_precision(settings.precision),
        onednn_kept(*_DTYPES_OF.get(settings.precision, ())),  # a resumed run then rounds like an uninterrupted one
        allocator(settings.allocator, device),
    ):
        yield


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """tf32 for float32 matrix products unless the precision is fp32."""
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
    """Inside, using an optimizer does not load torch's compiler, which takes seconds.

    torch excludes some functions, such as those of its optimizers, from compilation; the first call of one of them loads the
    compiler to register that. As long as the compiler is not loaded, this is not needed.
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


# ---- deterministic kernels and random numbers ----


@contextmanager
def deterministic_kernels(on: bool, *, compiled: bool) -> Iterator[None]:
    was_on = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    extras: Any = torch.utils.deterministic
    filled = extras.fill_uninitialized_memory
    benchmark = torch.backends.cudnn.benchmark
    _ask_for(on, compiled=compiled)
    extras.fill_uninitialized_memory = False  # a debugging aid that writes to every new tensor
    torch.backends.cudnn.benchmark = not on
    try:
        yield
    finally:
        _ask_for(was_on, warn_only=warned_only, compiled=compiled)
        extras.fill_uninitialized_memory = filled
        torch.backends.cudnn.benchmark = benchmark


def compiler_loaded() -> bool:
    return "torch._dynamo" in sys.modules


def _ask_for(on: bool, *, warn_only: bool = False, compiled: bool) -> None:
    """torch's usual call loads the compiler, which takes seconds: avoided in a run that compiles nothing."""
    if compiled or compiler_loaded():
        torch.use_deterministic_algorithms(on, warn_only=warn_only)
    else:
        torch.set_deterministic_debug_mode(("warn" if warn_only else "error") if on else "default")


@contextmanager
def own_random_state(seed: int, device: torch.device) -> Iterator[None]:
    """The run uses its own seed; the caller's random state is restored afterwards."""
    devices = [device] if device.type == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        reseed(seed, device)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def seed_of(seed: int, world: World) -> int:
    """The seed of a process for dropout and the like: processes with different tokens use different seeds."""
    return seed if world.token_rank == 0 else keyed(seed, f"rank {world.token_rank}")


def read_random_state(device: torch.device) -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "numbers": torch.tensor(numbers, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["numbers"].tolist()), python["gauss"]))
    keys = numpy["keys"].numpy().astype(np.uint32)
    np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def reseed(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also queue a seed for CUDA before it is initialised
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


# ---- the allocator of device memory ----


def allocator_settings(device: torch.device) -> str:
    """The current allocator settings of the device, from the environment or an earlier caller; empty: torch's defaults."""
    if device.type != "cuda":
        return ""
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if read is not None:
        return str(read())
    torch.cuda.init()
    snapshot: Any = torch.cuda.memory._snapshot(device)  # the only way in torch 2.11
    return str(snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF", ""))


@contextmanager
def allocator(kind: str, device: torch.device) -> Iterator[None]:
    """`expandable`: memory segments grow, so that batches of many shapes cause less fragmentation."""
    if kind == "default" or device.type != "cuda":
        yield
        return
    before = allocator_settings(device)
    _set_allocator(_with_expandable(before, True))
    try:
        yield
    finally:
        _set_allocator(before or _with_expandable("", False))  # an empty string would change nothing


def _with_expandable(settings: str, on: bool) -> str:
    others = [part for part in settings.split(",") if part and not part.strip().startswith("expandable_segments")]
    return ",".join([*others, f"expandable_segments:{on}"])


def _set_allocator(settings: str) -> None:
    set_settings: Any = torch._C._accelerator_setAllocatorSettings  # type: ignore[attr-defined]
    set_settings(settings)
