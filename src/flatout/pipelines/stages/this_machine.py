"""The machine, as far as measured results depend on it, read from files of the system: this has to be quick."""

from __future__ import annotations

import os
from pathlib import Path

_CPUINFO, _GPUS = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")


def machine_name() -> str:
    """Its processor, the cores that this process may use, and its NVIDIA GPUs."""
    return "; ".join([_processor(), f"{len(os.sched_getaffinity(0))} cores", *gpu_names()])


def gpu_names() -> list[str]:
    found = []
    try:
        places = sorted(_GPUS.iterdir())
    except OSError:
        return []
    for place in places:
        try:
            lines = (place / "information").read_text(errors="replace").splitlines()
        except OSError:
            continue
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]
    return found


def _processor() -> str:
    try:
        lines = _CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    if not named:  # Arm kernels have numbers instead of a name
        wanted = ("CPU implementer", "CPU part")
        named = " ".join(dict.fromkeys(line.partition(":")[2].strip() for line in lines if line.startswith(wanted)))
    return f"{os.uname().machine} {named}".strip()
