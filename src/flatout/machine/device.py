"""Choose the training device by name. A missing device is an error, never replaced by another."""

from __future__ import annotations

import os

import torch

from flatout.base.errors import MachineError, UsageError
from flatout.machine.host import cpu_model

CPU = torch.device("cpu")
_NAMES_ITSELF = ("cuda", "xpu")  # device modules that have get_device_name


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """ "auto" is the accelerator if there is one, else the CPU. The returned accelerator has an index."""
    here = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return CPU if here is None else torch.device(here.type, torch.accelerator.current_device_index())
    try:
        asked = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device must be {_choices(here)}; got {name!r}") from None
    if asked.type == "cpu":
        return CPU
    if here is None or asked.type != here.type:
        raise MachineError(f"device {str(name)!r} is not available: {_found(here)}; set device to {_choices(here)}")
    index = torch.accelerator.current_device_index() if asked.index is None else asked.index
    count = torch.accelerator.device_count()
    if index >= count:
        last = "" if count == 1 else f" to '{here.type}:{count - 1}'"
        raise MachineError(f"device {str(name)!r} is not available: {_found(here)}; set device to '{here.type}:0'{last}")
    return torch.device(here.type, index)


def all_devices(asked: str) -> tuple[str, ...]:
    """`auto` and `cuda` are all GPUs that this process may use; several are written with commas. Counting them does not use
    them, so processes may still be forked."""
    if asked == "auto":
        asked = "cuda" if torch.backends.cuda.is_built() and os.path.exists("/dev/nvidiactl") else "cpu"
    if asked == "cuda":
        return tuple(f"cuda:{place}" for place in range(max(1, torch.cuda.device_count())))
    return tuple("cuda:0" if name.strip() == "cuda" else name.strip() for name in asked.split(","))


def device_name(device: torch.device) -> str:
    """The product name, such as "NVIDIA H200" or "Intel(R) Xeon(R) Processor"."""
    if device.type == "cpu":
        return cpu_model()
    if device.type in _NAMES_ITSELF:
        return str(torch.get_device_module(device).get_device_name(device))
    return device.type


def _found(here: torch.device | None) -> str:
    if here is None:
        return f"torch {torch.__version__} finds no accelerator, only the CPU"
    count = torch.accelerator.device_count()
    return f"this machine has {count} {here.type} device{'' if count == 1 else 's'}"


def _choices(here: torch.device | None) -> str:
    return "'auto' or 'cpu'" if here is None else f"'auto', 'cpu' or '{here.type}'"
