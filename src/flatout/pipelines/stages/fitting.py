"""Which stages run side by side: by what each took when it ran before, or by what the file says that it needs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.base.units import parse_bytes
from flatout.pipelines.asked.stage_kinds import AnyStage, DataStage, RunStage
from flatout.pipelines.stages.records import StageRecord
from flatout.pipelines.stages.resolved import ResolvedStage
from flatout.pipelines.stages.this_machine import gpu_names

_USES_GPU = ("train", "tune", "evaluate", "run")
_MEMORY_SHARE, _GPU_SHARE = 0.8, 0.9
_SPARE_CORES = 0.25  # a command that waits for a disk now and then leaves a part of its cores


@dataclass(frozen=True)
class Need:
    """None: nobody knows yet. `alone`: its result holds times, which other work would spoil."""

    cores: float | None
    memory_bytes: int | None
    gpu_bytes: int | None
    alone: bool = False


@dataclass(frozen=True)
class FreeRoom:
    """What the machine has for stages. `gpu_bytes` is of its first GPU, on which stages run; 0 without one."""

    cores: float
    memory_bytes: int
    gpu_bytes: int

    @classmethod
    def here(cls) -> FreeRoom:
        return cls(float(len(os.sched_getaffinity(0))), _free_memory(), _free_gpu_memory())

    def fits(self, need: Need, running: Sequence[Need]) -> bool:
        """Whether a stage can start beside these."""
        if not running:
            return True
        together = [*running, need]
        if any(one.alone for one in together):
            return False
        if sum(self.cores if one.cores is None else min(one.cores, self.cores) for one in together) > self.cores + _SPARE_CORES:
            return False
        if sum(one.memory_bytes or 0 for one in together) > _MEMORY_SHARE * self.memory_bytes:
            return False
        on_gpu = [one for one in together if one.gpu_bytes != 0]
        if len(on_gpu) > 1 and self.gpu_bytes:
            sizes = [self.gpu_bytes if one.gpu_bytes is None else one.gpu_bytes for one in on_gpu]
            return sum(sizes) <= _GPU_SHARE * self.gpu_bytes
        return True


def need_of(stage: ResolvedStage, last: StageRecord | None, room: FreeRoom) -> Need:
    """What the file says comes first, then what was measured. Scripts that never ran, and expectations, need one core."""
    asked = stage.asked
    said = None if asked.needs is None else asked.needs.cores
    known = (None, None, None) if last is None else (last.cores, last.memory_bytes, last.gpu_bytes)
    cores = _first(said, known[0], 1.0 if isinstance(asked, RunStage | DataStage) else None)
    memory = _first(_bytes(asked, "memory"), known[1])
    gpu: float | None = 0
    if room.gpu_bytes and stage.kind in _USES_GPU:
        unknown = 0 if isinstance(asked, RunStage) else None
        gpu = _first(_bytes(asked, "gpu_memory"), known[2], unknown)
    return Need(cores, None if memory is None else int(memory), None if gpu is None else int(gpu), stage.is_measured)


def _bytes(asked: AnyStage, name: str) -> int | None:
    written = None if asked.needs is None else getattr(asked.needs, name)
    return None if written is None else parse_bytes(written)


def _first(*known: float | None) -> float | None:
    return next((one for one in known if one is not None), None)


def _free_memory() -> int:
    """Of the machine, or what is left of this container's limit."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 1 << 62
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(free, 0)


def _free_gpu_memory() -> int:
    if not gpu_names():
        return 0
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        return int(answer.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0
