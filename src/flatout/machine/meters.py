"""Live meters of one device: power, energy, temperature, clock, utilisation, memory. An unreadable value is None, not 0."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

import psutil
import torch

from flatout.machine.nvml import Gpus, open_gpus
from flatout.machine.reading import MeterReading

__all__ = ["Meters", "MeterReading"]

_POWERCAP = Path("/sys/class/powercap")


class _Source(Protocol):
    why_unavailable: str

    def read(self) -> MeterReading: ...


class Meters:
    """`why_unavailable`: why some readings are None; empty if all can be read."""

    def __init__(self, device: torch.device, gpus: Gpus | None = None, powercap: Path = _POWERCAP) -> None:
        self._source: _Source
        if device.type == "cpu":
            self._source = _HostMeters(powercap)
        elif device.type == "cuda":
            self._source = _NvmlMeters(device, gpus or open_gpus())
        else:
            self._source = _NoMeters(f"no meters for {device.type} devices yet")

    def read(self) -> MeterReading:
        return self._source.read()

    @property
    def why_unavailable(self) -> str:
        return self._source.why_unavailable


class _NoMeters:
    def __init__(self, why_unavailable: str) -> None:
        self.why_unavailable = why_unavailable

    def read(self) -> MeterReading:
        return MeterReading()


class _NvmlMeters:
    def __init__(self, device: torch.device, gpus: Gpus) -> None:
        self._device = device
        self._gpus = gpus
        missing = self.read().unavailable
        self.why_unavailable = gpus.why_absent or (f"NVML does not report {', '.join(missing)} for {device}" if missing else "")

    def read(self) -> MeterReading:
        return self._gpus.read(self._device)


class _HostMeters:
    """CPU packages: energy from RAPL if the kernel allows reading it, the rest from the operating system."""

    def __init__(self, powercap: Path) -> None:
        self._rapl = [_RaplCounter(zone) for zone in sorted(powercap.glob("intel-rapl:[0-9]*")) if zone.name.count(":") == 1]
        self._last: tuple[float, float] | None = None
        if not self._rapl:
            self.why_unavailable = "no energy counter: this system has no RAPL, like most virtual machines"
        elif self._energy_j() is None:
            self.why_unavailable = f"only root can read the CPU's energy counter ({powercap}/intel-rapl*/energy_uj)"
        else:
            self.why_unavailable = ""
        psutil.cpu_percent()  # the first call only sets the start of the next interval

    def read(self) -> MeterReading:
        energy_j = self._energy_j()
        clock = psutil.cpu_freq()
        return MeterReading(
            power_w=self._power_w(energy_j),
            energy_j=energy_j,
            temperature_c=_hottest_c(),
            clock_mhz=clock.current if clock else None,
            utilization=psutil.cpu_percent() / 100,
            memory_used_bytes=psutil.virtual_memory().used,
        )

    def _energy_j(self) -> float | None:
        packages = [counter.read_j() for counter in self._rapl]
        known = [energy_j for energy_j in packages if energy_j is not None]
        return sum(known) if known and len(known) == len(packages) else None

    def _power_w(self, energy_j: float | None) -> float | None:
        """Mean power since the previous reading; None on the first reading."""
        if energy_j is None:
            return None
        now_s = time.monotonic()
        before, self._last = self._last, (now_s, energy_j)
        if before is None or now_s <= before[0]:
            return None
        return (energy_j - before[1]) / (now_s - before[0])


class _RaplCounter:
    """One package's counter in joules. The kernel's counter wraps around; this one does not."""

    def __init__(self, zone: Path) -> None:
        self._energy_file = zone / "energy_uj"
        self._range_uj = _read_number(zone / "max_energy_range_uj") or 0
        self._wrapped_uj = 0
        self._last_uj = 0

    def read_j(self) -> float | None:
        now_uj = _read_number(self._energy_file)
        if now_uj is None:
            return None
        if now_uj < self._last_uj:
            self._wrapped_uj += self._range_uj
        self._last_uj = now_uj
        return (now_uj + self._wrapped_uj) / 1e6


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _hottest_c() -> float | None:
    if not psutil.LINUX:  # psutil reads temperatures on Linux and FreeBSD only
        return None
    chips = psutil.sensors_temperatures()
    cores = [sensor.current for chip in ("coretemp", "k10temp", "zenpower", "cpu_thermal") for sensor in chips.get(chip, [])]
    return max(cores, default=None)
