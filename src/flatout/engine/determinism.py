"""Bit-exact repetition: deterministic kernels for as long as a run lasts, and the random state that a checkpoint keeps."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from flatout.data.order.keyed import keyed
from flatout.world.world import World


@contextmanager
def deterministic_kernels(on: bool, *, compiled: bool) -> Iterator[None]:
    was_on = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    extras: Any = torch.utils.deterministic
    filled = extras.fill_uninitialized_memory
    benchmark = torch.backends.cudnn.benchmark
    _ask_for(on, compiled=compiled)
    extras.fill_uninitialized_memory = False  # a debugging aid that costs a pass over each new tensor
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
    """Torch's usual call tells its compiler too, which takes seconds to load: not for a run that compiles nothing."""
    if compiled or compiler_loaded():
        torch.use_deterministic_algorithms(on, warn_only=warn_only)
    else:
        torch.set_deterministic_debug_mode(("warn" if warn_only else "error") if on else "default")


@contextmanager
def own_random_state(seed: int, device: torch.device) -> Iterator[None]:
    """The run draws from its own seed; the caller's random numbers are as if it had never been."""
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
    """Of what a process draws by itself, such as dropout: processes with tokens of their own draw numbers of their own."""
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


def written_random_state(device: torch.device) -> dict[str, Any]:
    """The same as JSON can hold it, to be told to another process."""
    state = read_random_state(device)
    return {
        "python": {**state["python"], "numbers": state["python"]["numbers"].tolist()},
        "numpy": {**state["numpy"], "keys": state["numpy"]["keys"].tolist()},
        **{name: state[name].tolist() for name in ("torch", "cuda") if name in state},
    }


def restore_written_random_state(state: dict[str, Any], device: torch.device) -> None:
    read: dict[str, Any] = {
        "python": {**state["python"], "numbers": torch.tensor(state["python"]["numbers"])},
        "numpy": {**state["numpy"], "keys": torch.tensor(state["numpy"]["keys"])},
        **{name: torch.tensor(state[name], dtype=torch.uint8) for name in ("torch", "cuda") if name in state},
    }
    restore_random_state(read, device)


def reseed(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would leave a seed for a CUDA that has not started
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
