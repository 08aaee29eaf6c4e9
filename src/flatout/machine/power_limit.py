"""Sets the power limit of a GPU while a run or a trial lasts, and puts back the one before, also if the process is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from flatout.machine.nvml import Gpus, PowerLimits, open_gpus

RESTORE = """
import sys, pynvml
uuid, milliwatts = sys.argv[1:]
sys.stdin.read()
pynvml.nvmlInit()
pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByUUID(uuid), int(milliwatts))
"""
"""A program that waits for the end of its input, which comes however this process ends, and sets the limit again."""


def why_not_settable(device: torch.device, gpus: Gpus | None = None) -> str:
    """Tries it, by setting the limit that is set. Empty: it works."""
    if device.type != "cuda":
        return "NVIDIA GPUs only"
    gpus = gpus or open_gpus()
    limits = gpus.power_limits(device)
    if limits is None:
        return gpus.why_absent or f"NVML reports no power limit of {device}"
    return gpus.limit_power(device, limits.now_w)


def power_limits(device: torch.device, gpus: Gpus | None = None) -> PowerLimits | None:
    return (gpus or open_gpus()).power_limits(device) if device.type == "cuda" else None


def why_not_this(watts: float, limits: PowerLimits | None, device: torch.device) -> str:
    """Why this limit can't be set on the device; empty: it lies inside its limits."""
    if limits is None:
        return f"{device} has no power limit that can be read"
    if not limits.least_w <= watts <= limits.most_w:
        return f"{device} takes {limits.least_w:.0f} to {limits.most_w:.0f} W, got {watts:g}"
    return ""


@contextmanager
def limited_power(watts: float, device: torch.device, gpus: Gpus | None = None) -> Iterator[str]:
    """Gives why the limit could not be set; empty: it is set. 0 watts: unchanged."""
    if not watts:
        yield ""
        return
    gpus = gpus or open_gpus()
    limits = power_limits(device, gpus)
    if limits is not None and abs(limits.now_w - watts) < 1:
        yield ""  # set by whoever called this one
        return
    why = why_not_this(watts, limits, device) or gpus.limit_power(device, watts)
    if why or limits is None:
        yield why
        return
    with _restored(device, limits.now_w, gpus):
        yield ""


@contextmanager
def _restored(device: torch.device, before_w: float, gpus: Gpus) -> Iterator[None]:
    uuid = next((gpu.uuid for gpu in gpus.facts() if gpu.device == str(device)), "")
    command = [sys.executable, "-c", RESTORE, uuid, str(round(before_w * 1e3))]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        gpus.limit_power(device, before_w)
        with suppress(OSError):
            if keeper.stdin is not None:
                keeper.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(timeout=10)
