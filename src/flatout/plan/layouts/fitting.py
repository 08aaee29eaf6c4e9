"""Whether a device can hold a full copy of a job's state. Checked before each run, so it uses no layout estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from flatout.base.specs import Spec
from flatout.base.units import show_bytes
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.device import device_name
from flatout.plan.tier import free_bytes

_STATE_BYTES = {"adamw": 8, "adam": 8, "sgd": 4}  # of optimizer state, per weight
_SURELY = 0.2  # of a device's memory: the rest is for activations, which a smaller micro-batch can shrink


@dataclass(frozen=True)
class LayoutChoice:
    mesh: str
    why: str
    source: str = "default"  # as in `Choice`
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings that it needs to fit
    step_s: float | None = None  # estimated


def state_bytes(job: Job) -> int:
    """Bytes of optimizer state per weight."""
    return _STATE_BYTES.get(job.optimizer.name, 8) if isinstance(job.optimizer, Spec) else 8


def held_by_a_copy(job: Job) -> int:
    """Bytes of weights, gradients and optimizer state."""
    state = state_bytes(job)
    trained = sum(p.numel() * (p.element_size() * 2 + state) for p in job.model.parameters() if p.requires_grad)
    frozen = sum(p.numel() * p.element_size() for p in job.model.parameters() if not p.requires_grad)
    return trained + frozen + (sum(p.numel() * p.element_size() for p in job.model.parameters()) if job.ema else 0)


def why_not_here(job: Job, settings: Settings) -> str | None:
    """Why one device can't hold the state of a step, whatever the batch; None: it may fit."""
    device = torch.device(settings.device)
    held, free = held_by_a_copy(job), free_bytes(device)
    if settings.optimizer_offload or held <= free:
        return None
    return (
        f"does not fit: weights, gradients and optimizer state take {show_bytes(held)}; {show_bytes(free)} are free on "
        f"{device_name(device)}. For several devices: flatout explain RECIPE --devices 64 --device-kind h100"
    )


def surely_fits(job: Job, devices: int, memory_bytes: float) -> LayoutChoice | None:
    """Full copies, without an estimate: the fastest layout if each device can hold one. None: not certain."""
    held = held_by_a_copy(job)
    if held > _SURELY * memory_bytes:
        return None
    words = f"weights, gradients and optimizer state take {show_bytes(held)} of {show_bytes(memory_bytes)} per device"
    return LayoutChoice(f"data={devices}", f"{words}: each device has a full copy")
