"""Whether a device can hold a copy of all that a job trains: asked before each run, so it needs none of the estimates."""

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

_STATE_BYTES = {"adamw": 8, "adam": 8, "sgd": 4}  # of an optimizer, for a weight
_SURELY = 0.2  # of a device's memory: the rest is for activations, which a smaller micro-batch makes smaller


@dataclass(frozen=True)
class LayoutChoice:
    mesh: str
    why: str
    source: str = "default"  # where it came from, as of any choice of a plan
    settings: Mapping[str, Any] = field(default_factory=dict)  # without which it should not fit
    step_s: float | None = None  # estimated


def state_bytes(job: Job) -> int:
    """Of its optimizer, for a weight."""
    return _STATE_BYTES.get(job.optimizer.name, 8) if isinstance(job.optimizer, Spec) else 8


def held_by_a_copy(job: Job) -> int:
    """Bytes of weights, gradients and optimizer state."""
    state = state_bytes(job)
    trained = sum(p.numel() * (p.element_size() * 2 + state) for p in job.model.parameters() if p.requires_grad)
    frozen = sum(p.numel() * p.element_size() for p in job.model.parameters() if not p.requires_grad)
    return trained + frozen + (sum(p.numel() * p.element_size() for p in job.model.parameters()) if job.ema else 0)


def why_not_here(job: Job, settings: Settings) -> str | None:
    """In words, where one device can't hold what a step needs whatever its batch; None: it may fit."""
    device = torch.device(settings.device)
    held, free = held_by_a_copy(job), free_bytes(device)
    if settings.optimizer_offload or held <= free:
        return None
    return (
        f"does not fit: weights, gradients and optimizer state take {show_bytes(held)}, and {show_bytes(free)} are free on "
        f"{device_name(device)}. For several devices: flatout explain RECIPE --devices 64 --device-kind h100"
    )


def surely_fits(job: Job, devices: int, memory_bytes: float) -> LayoutChoice | None:
    """Copies, without an estimate: nothing is faster where each device can have one. None: not so sure."""
    held = held_by_a_copy(job)
    if held > _SURELY * memory_bytes:
        return None
    words = f"weights, gradients and optimizer state take {show_bytes(held)} of the {show_bytes(memory_bytes)} of a device"
    return LayoutChoice(f"data={devices}", f"{words}: each has a copy")
