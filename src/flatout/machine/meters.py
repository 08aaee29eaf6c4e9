"""Live meters of one device: power, energy, temperature, clock, utilisation, memory. An unreadable value is None, not 0."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import psutil
import torch

from flatout.machine.energy import EnergyMeter, NoEnergy, device_energy
from flatout.machine.nvml import Gpus, open_gpus
from flatout.machine.reading import MeterReading

__all__ = ["Meters", "MeterReading"]


class _Source(Protocol):
    why_unavailable: str
    energy: EnergyMeter

    def read(self) -> MeterReading: ...


class Meters:
    """`why_unavailable`: why some readings are None; empty if all can be read."""

    def __init__(self, device: torch.device, gpus: Gpus | None = None, powercap: Path | None = None) -> None:
        self._source: _Source
        if device.type == "cpu":
            self._source = _HostMeters(powercap)
        elif device.type == "cuda":
            self._source = _NvmlMeters(device, gpus or open_gpus())
        else:
            self._source = _NoMeters(device)

    def read(self) -> MeterReading:
        return self._source.read()

    @property
    def energy(self) -> EnergyMeter:
        return self._source.energy

    @property
    def why_unavailable(self) -> str:
        return self._source.why_unavailable

    def close(self) -> None:
        self.energy.close()


class _NoMeters:
    def __init__(self, device: torch.device) -> None:
        self.energy = device_energy(device)
        self.why_unavailable = self.energy.why_unavailable

    def read(self) -> MeterReading:
        return MeterReading()


class _NvmlMeters:
    def __init__(self, device: torch.device, gpus: Gpus) -> None:
        self._device = device
        self._gpus = gpus
        self.energy = NoEnergy(gpus.why_absent) if gpus.why_absent else device_energy(device, gpus)
        missing = self.read().unavailable
        self.why_unavailable = gpus.why_absent or (f"NVML does not report {', '.join(missing)} for {device}" if missing else "")

    def read(self) -> MeterReading:
        found = self._gpus.read(self._device)
        return found if found.energy_j else replace(found, energy_j=self.energy.read_j())


class _HostMeters:
    """CPU packages: energy from RAPL if the kernel allows reading it, the rest from the operating system."""

    def __init__(self, powercap: Path | None) -> None:
        self.energy = device_energy(torch.device("cpu"), powercap=powercap)
        self.why_unavailable = self.energy.why_unavailable
        self._last: tuple[float, float] | None = None
        psutil.cpu_percent()  # the first call only sets the start of the next interval

    def read(self) -> MeterReading:
        energy_j = self.energy.read_j()
        clock = psutil.cpu_freq()
        return MeterReading(
            power_w=self._power_w(energy_j),
            energy_j=energy_j,
            temperature_c=_hottest_c(),
            clock_mhz=clock.current if clock else None,
            utilization=psutil.cpu_percent() / 100,
            memory_used_bytes=psutil.virtual_memory().used,
        )

    def _power_w(self, energy_j: float | None) -> float | None:
        """Mean power since the previous reading; None on the first reading."""
        if energy_j is None:
            return None
        now_s = time.monotonic()
        before, self._last = self._last, (now_s, energy_j)
        if before is None or now_s <= before[0]:
            return None
        return (energy_j - before[1]) / (now_s - before[0])


def _hottest_c() -> float | None:
    if not psutil.LINUX:  # psutil reads temperatures on Linux and FreeBSD only
        return None
    chips = psutil.sensors_temperatures()
    cores = [sensor.current for chip in ("coretemp", "k10temp", "zenpower", "cpu_thermal") for sensor in chips.get(chip, [])]
    return max(cores, default=None)
