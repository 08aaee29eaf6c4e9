"""Meters of energy: a counter where there is one, else sampled power, else none with the reason. Each says what it is.

A meter counts joules from an arbitrary start: only differences mean something.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from flatout.machine.nvml import Gpus, open_gpus

POWERCAP = Path("/sys/class/powercap")
_SAMPLE_S = 0.1
_SENSOR = 0.05  # NVIDIA states this accuracy for readings of power


class EnergyMeter(Protocol):
    """`resolution_s`: the counter moves in steps of about this time, so much shorter windows are noise."""

    name: str
    why_unavailable: str  # empty: it can be read
    resolution_s: float

    def read_j(self) -> float | None: ...

    def error(self, seconds: float) -> float | None:
        """How wrong the joules of that many seconds may be, as a share of them, as far as the meter can tell."""
        ...

    def close(self) -> None: ...


class NoEnergy:
    name = "unavailable"
    resolution_s = math.inf

    def __init__(self, why_unavailable: str) -> None:
        self.why_unavailable = why_unavailable

    def read_j(self) -> None:
        return None

    def error(self, seconds: float) -> None:
        return None

    def close(self) -> None:
        pass


class GpuCounter:
    """NVML's counter of the whole card. Other programs on the card are counted too."""

    name = "NVML energy counter"
    why_unavailable = ""
    resolution_s = 0.1

    def __init__(self, gpus: Gpus, device: torch.device) -> None:
        self._gpus, self._device = gpus, device

    def read_j(self) -> float | None:
        return self._gpus.energy_j(self._device)

    def error(self, seconds: float) -> float:
        return _of_steps(self.resolution_s, seconds)

    def close(self) -> None:
        pass


class SampledPower:
    """For a GPU without a counter: reads its power ten times a second in a thread, and adds it up.

    The error is that of the sensor, and what leaving out every other sample changes.
    """

    name = "NVML power readings, 10 a second"
    why_unavailable = ""
    resolution_s = _SAMPLE_S

    def __init__(self, read_w: Callable[[], float | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._read_w, self._clock = read_w, clock
        self._one_at_a_time = threading.Lock()
        self._all, self._every_other, self._taken = _Integral(), _Integral(), 0
        self._ended = threading.Event()
        self.sample()
        me = weakref.ref(self)  # the thread ends with the meter
        threading.Thread(target=_sample, args=(me, self._ended), name="flatout power", daemon=True).start()

    def sample(self) -> None:
        with self._one_at_a_time:
            watts = self._read_w()
            if watts is None:  # the next reading bridges the gap
                return
            now_s = self._clock()
            self._all.add(now_s, watts)
            if self._taken % 2 == 0:
                self._every_other.add(now_s, watts)
            self._taken += 1

    def read_j(self) -> float:
        self.sample()
        return self._all.joules

    def error(self, seconds: float) -> float:
        with self._one_at_a_time:
            fine, coarse = self._all.joules, self._every_other.joules
            last_s = self._all.last[0] - self._every_other.last[0] if self._all.last and self._every_other.last else 0.0
            coarse += last_s * self._all.last[1] if self._all.last else 0.0
        return math.hypot(_SENSOR, abs(fine - coarse) / fine if fine else 0.0, _of_steps(self.resolution_s, seconds))

    def close(self) -> None:
        self._ended.set()


def _sample(meter: weakref.ref[SampledPower], ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_S) and (alive := meter()) is not None:
        alive.sample()
        del alive


class _Integral:
    """Of power over time, by trapezoids."""

    def __init__(self) -> None:
        self.joules = 0.0
        self.last: tuple[float, float] | None = None

    def add(self, now_s: float, watts: float) -> None:
        if self.last is not None:
            self.joules += (now_s - self.last[0]) * (watts + self.last[1]) / 2
        self.last = now_s, watts


class Rapl:
    """The CPU packages of this machine, all programs on it included, memory modules and disks not."""

    name = "RAPL counter of the CPU packages"
    resolution_s = 0.001

    def __init__(self, powercap: Path) -> None:
        self._packages = [_RaplCounter(zone) for zone in sorted(powercap.glob("intel-rapl:[0-9]*")) if _is_package(zone)]
        if not self._packages:
            self.why_unavailable = "no energy counter: this system has no RAPL, like most virtual machines"
        elif self.read_j() is None:
            self.why_unavailable = f"only root can read the CPU's energy counter ({powercap}/intel-rapl*/energy_uj)"
        else:
            self.why_unavailable = ""

    def read_j(self) -> float | None:
        packages = [counter.read_j() for counter in self._packages]
        known = [energy_j for energy_j in packages if energy_j is not None]
        return sum(known) if known and len(known) == len(packages) else None

    def error(self, seconds: float) -> float:
        return _of_steps(self.resolution_s, seconds)

    def close(self) -> None:
        pass


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


def device_energy(device: torch.device, gpus: Gpus | None = None, powercap: Path | None = None) -> EnergyMeter:
    """The best meter of this device. For a CPU it is that of the host."""
    if device.type == "cpu":
        return host_energy(powercap)
    if device.type != "cuda":
        return NoEnergy(f"no meters for {device.type} devices yet")
    gpus = gpus or open_gpus()
    if gpus.why_absent:
        return NoEnergy(gpus.why_absent)
    if gpus.energy_j(device):  # a counter that stands at 0 counts nothing, as on some virtual GPUs
        return GpuCounter(gpus, device)
    if gpus.power_w(device):
        return SampledPower(lambda: gpus.power_w(device))
    return NoEnergy(f"NVML reports neither energy nor power of {device}")


def host_energy(powercap: Path | None = None) -> EnergyMeter:
    rapl = Rapl(powercap or POWERCAP)
    return NoEnergy(rapl.why_unavailable) if rapl.why_unavailable else rapl


def _is_package(zone: Path) -> bool:
    """`intel-rapl:0:0` is a part of a package, and `psys` is the whole board: counting them would count twice."""
    return zone.name.count(":") == 1 and _read_text(zone / "name") != "psys"


def _of_steps(resolution_s: float, seconds: float) -> float:
    return min(1.0, resolution_s / seconds) if seconds > 0 else 1.0


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None


def _read_number(path: Path) -> int | None:
    text = _read_text(path)
    return int(text) if text is not None and text.isdigit() else None
