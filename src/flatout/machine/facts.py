"""Facts about this machine, as the system reports them: versions, cores, memory, GPUs, limits. Nothing is measured here."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import psutil
import torch

from flatout.machine import host
from flatout.machine.nvml import GpuFacts, Gpus, open_gpus
from flatout.machine.others_work import CpuUse

LIBRARIES = (
    "numpy", "pydantic", "pyyaml", "typer", "rich", "safetensors", "pyarrow", "pillow", "simplejpeg", "nvidia-ml-py", "psutil",
    "fsspec",
)  # fmt: skip


@dataclass(frozen=True)
class CpuFacts:
    model: str
    physical_cores: int | None
    logical_cores: int
    affinity_cores: int
    cgroup_cores: float | None  # the container's quota; None: no quota

    @property
    def usable_cores(self) -> int:
        """Cores that this process can use at once."""
        allowed = self.affinity_cores if self.cgroup_cores is None else min(self.affinity_cores, self.cgroup_cores)
        return max(1, int(allowed))


@dataclass(frozen=True)
class Facts:
    """None: not reported by the system, or no limit."""

    python: str
    platform: str
    torch: str
    cuda: str | None  # that torch was built with
    driver: str | None
    accelerators: int  # that torch can use in this process
    gpus: tuple[GpuFacts, ...]
    why_no_gpus: str
    cpu: CpuFacts
    memory_total_bytes: int
    memory_available_bytes: int
    memory_limit_bytes: int | None  # the container's
    swap_used_bytes: int
    shm_bytes: int | None
    open_files_limit: int | None
    torch_threads: int
    libraries: dict[str, str | None]
    others_cores: float | None = None  # cores that other processes use; None: not looked at

    @property
    def memory_usable_bytes(self) -> int:
        return min(self.memory_total_bytes, self.memory_limit_bytes or self.memory_total_bytes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_facts(gpus: Gpus | None = None, *, others: CpuUse | None = None) -> Facts:
    """`others`: CPU use of other processes, if somebody looked."""
    gpus = gpus or open_gpus()
    memory = psutil.virtual_memory()
    return Facts(
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=gpus.driver,
        accelerators=torch.accelerator.device_count(),
        gpus=gpus.facts(),
        why_no_gpus=gpus.why_absent,
        cpu=CpuFacts(
            model=host.cpu_model(),
            physical_cores=psutil.cpu_count(logical=False),
            logical_cores=psutil.cpu_count() or 1,
            affinity_cores=host.affinity_cores(),
            cgroup_cores=host.cgroup_cores(),
        ),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        memory_limit_bytes=host.cgroup_memory_bytes(),
        swap_used_bytes=psutil.swap_memory().used,
        shm_bytes=host.shm_bytes(),
        open_files_limit=host.open_files_limit(),
        torch_threads=torch.get_num_threads(),
        libraries={name: _version(name) for name in LIBRARIES},
        others_cores=None if others is None else round(others.others, 2),
    )


def fingerprint(facts: Facts) -> str:
    """Short hash of everything the ceilings depend on: machines with the same fingerprint may share measurements."""
    decisive = {
        "python": sys.implementation.cache_tag,  # most of a launch's cost is Python's
        "torch": facts.torch,
        "cuda": facts.cuda,
        "driver": facts.driver,
        "gpus": [(gpu.uuid, gpu.device, gpu.power_limit_w) for gpu in facts.gpus],
        "accelerators": facts.accelerators,
        "cpu": (facts.cpu.model, facts.cpu.usable_cores, facts.torch_threads),
        "memory_gb": round(facts.memory_usable_bytes / 1e9),
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
