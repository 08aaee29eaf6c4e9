"""Explains an out-of-memory error: how much each kind of tensor holds, and what to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flatout.base.units import show_bytes


@dataclass(frozen=True)
class MemoryByKind:
    """Bytes by kind when memory ran out."""

    weights: int
    gradients: int
    optimizer: int
    total: int

    @property
    def rest(self) -> int:
        return max(self.total - self.weights - self.gradients - self.optimizer, 0)


def held(optimizers: Iterable[torch.optim.Optimizer], device: str) -> MemoryByKind:
    known = list(optimizers)
    weights = [p for one in known for group in one.param_groups for p in group["params"]]
    gradients = [p.grad for p in weights if p.grad is not None]
    state = [value for one in known for of in one.state.values() for value in of.values() if isinstance(value, Tensor)]
    if device == "cuda":
        total = torch.cuda.memory_allocated()
    else:
        import psutil

        total = int(psutil.Process().memory_info().rss)
    return MemoryByKind(_bytes(weights), _bytes(gradients), _bytes(state), total)


def keep_snapshot(path: Path) -> Path | None:
    """A snapshot for pytorch.org/memory_viz; only on a GPU."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.memory._dump_snapshot(str(path))
    except (RuntimeError, OSError):
        return None
    return path


def explained(error: BaseException, found: MemoryByKind, snapshot: Path | None) -> list[str]:
    """A few lines to print."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    lines = [
        f"Out of memory: {first[:160]}",
        f"  weights {show_bytes(found.weights)} · gradients {show_bytes(found.gradients)} · optimizer state "
        f"{show_bytes(found.optimizer)} · activations and the rest {show_bytes(found.rest)}",
    ]
    if found.rest >= found.weights + found.gradients + found.optimizer:
        lines.append(
            "  Mostly activations. Use a smaller batch with gradient accumulation (same training), bf16 autocast (half the "
            "memory), or torch.utils.checkpoint around the blocks"
        )
    else:
        lines.append(
            "  Mostly weights and optimizer state. Shard them over several GPUs (FSDP2), keep the optimizer state in host "
            "memory, or use an optimizer with less state"
        )
    if snapshot is not None:
        lines.append(f"  Memory snapshot: {snapshot} (open it at pytorch.org/memory_viz)")
    return lines


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())
