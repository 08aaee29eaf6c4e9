"""NVIDIA GPUs through NVML: facts, state and counters. The only module that uses the vendor's library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch

from flatout.machine.reading import MeterReading

# NVML's bits for reduced clocks. Idle GPUs and user-set application clocks are normal and left out.
_THROTTLE_BITS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "external power brake",
}


@dataclass(frozen=True)
class GpuFacts:
    """One GPU. Idle GPUs slow down links and clocks: read `pcie_*` and `clock_mhz` under load."""

    name: str
    uuid: str
    device: str | None  # torch's name, such as "cuda:0"; None: this process can't use it
    memory_bytes: int | None = None
    capability: str | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    power_limit_w: float | None = None
    power_limit_max_w: float | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    ecc: bool | None = None


@dataclass(frozen=True)
class PowerLimits:
    """In watts: what it is set to, and what it may be set to."""

    now_w: float
    least_w: float
    most_w: float


class Gpus(Protocol):
    why_absent: str
    driver: str | None

    def facts(self) -> tuple[GpuFacts, ...]: ...

    def read(self, device: torch.device) -> MeterReading: ...

    def energy_j(self, device: torch.device) -> float | None: ...

    def power_w(self, device: torch.device) -> float | None: ...

    def power_limits(self, device: torch.device) -> PowerLimits | None: ...

    def limit_power(self, device: torch.device, watts: float) -> str:
        """Returns why it could not be set; empty: it is set, for everybody who uses the GPU, until somebody sets another."""
        ...


class NoGpus:
    """A machine without NVML."""

    def __init__(self, why_absent: str) -> None:
        self.why_absent = why_absent
        self.driver: str | None = None

    def facts(self) -> tuple[GpuFacts, ...]:
        return ()

    def read(self, device: torch.device) -> MeterReading:
        return MeterReading()

    def energy_j(self, device: torch.device) -> float | None:
        return None

    def power_w(self, device: torch.device) -> float | None:
        return None

    def power_limits(self, device: torch.device) -> PowerLimits | None:
        return None

    def limit_power(self, device: torch.device, watts: float) -> str:
        return self.why_absent


class NvmlGpus:
    """NVML lists all GPUs of the machine, torch only visible ones (CUDA_VISIBLE_DEVICES): they are matched by UUID."""

    why_absent = ""

    def __init__(self, library: Any, torch_devices: Callable[[], dict[str, str]]) -> None:
        self._nvml = library
        self._torch_devices = torch_devices
        self._handle_of_device: dict[str, Any] = {}
        self.driver: str | None = _text(self._ask("nvmlSystemGetDriverVersion"))
        self._handles = {str(_text(self._ask("nvmlDeviceGetUUID", handle))): handle for handle in self._all_handles()}

    def facts(self) -> tuple[GpuFacts, ...]:
        devices = self._torch_devices()
        return tuple(self._facts(uuid, handle, devices.get(uuid)) for uuid, handle in self._handles.items())

    def energy_j(self, device: torch.device) -> float | None:
        return self._of_one("nvmlDeviceGetTotalEnergyConsumption", device, 1e-3)

    def power_w(self, device: torch.device) -> float | None:
        return self._of_one("nvmlDeviceGetPowerUsage", device, 1e-3)

    def power_limits(self, device: torch.device) -> PowerLimits | None:
        now_w = self._of_one("nvmlDeviceGetPowerManagementLimit", device, 1e-3)
        handle = self._handle_of(device)
        limits = None if handle is None else self._ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        return None if now_w is None or limits is None else PowerLimits(now_w, limits[0] / 1e3, limits[1] / 1e3)

    def limit_power(self, device: torch.device, watts: float) -> str:
        handle = self._handle_of(device)
        if handle is None:
            return f"NVML does not know {device}"
        try:
            self._nvml.nvmlDeviceSetPowerManagementLimit(handle, round(watts * 1e3))
        except self._nvml.NVMLError as error:
            return str(error)
        return ""

    def _of_one(self, question: str, device: torch.device, scale: float) -> float | None:
        handle = self._handle_of(device)
        return None if handle is None else _scaled(self._ask(question, handle), scale)

    def _handle_of(self, device: torch.device) -> Any:
        if not self._handle_of_device:
            self._handle_of_device = {name: self._handles.get(uuid) for uuid, name in self._torch_devices().items()}
        named = f"cuda:{torch.cuda.current_device()}" if device.index is None and self._handle_of_device else str(device)
        return self._handle_of_device.get(named)

    def read(self, device: torch.device) -> MeterReading:
        handle = self._handle_of(device)
        if handle is None:
            return MeterReading()
        n = self._nvml
        utilization = self._ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return MeterReading(
            power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage", handle), 1e-3),
            energy_j=_scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e-3),
            temperature_c=_scaled(self._ask("nvmlDeviceGetTemperature", handle, n.NVML_TEMPERATURE_GPU), 1),
            clock_mhz=_scaled(self._ask("nvmlDeviceGetClockInfo", handle, n.NVML_CLOCK_SM), 1),
            utilization=None if utilization is None else utilization.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
        )

    def _facts(self, uuid: str, handle: Any, device: str | None) -> GpuFacts:
        n = self._nvml
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        limits = self._ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        ecc = self._ask("nvmlDeviceGetEccMode", handle)
        return GpuFacts(
            name=_text(self._ask("nvmlDeviceGetName", handle)) or "unknown GPU",
            uuid=uuid,
            device=device,
            memory_bytes=None if memory is None else int(memory.total),
            capability=None if capability is None else f"{capability[0]}.{capability[1]}",
            pcie_generation=self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_generation_max=self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width=self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            pcie_width_max=self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            power_limit_w=_scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle), 1e-3),
            power_limit_max_w=None if limits is None else limits[1] / 1e3,
            clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, n.NVML_CLOCK_SM),
            clock_max_mhz=self._ask("nvmlDeviceGetMaxClockInfo", handle, n.NVML_CLOCK_SM),
            throttle_reasons=_throttle_words(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0),
            ecc=None if ecc is None else bool(ecc[0]),
        )

    def _all_handles(self) -> list[Any]:
        found = (self._ask("nvmlDeviceGetHandleByIndex", i) for i in range(self._ask("nvmlDeviceGetCount") or 0))
        return [handle for handle in found if handle is not None]

    def _ask(self, question: str, *about: Any) -> Any:
        """None if the board or virtual machine does not support the query."""
        try:
            return getattr(self._nvml, question)(*about)
        except self._nvml.NVMLError:
            return None


@cache
def open_gpus() -> Gpus:
    """NVML if available, else `NoGpus`. Opened once, because opening is slow."""
    try:
        import pynvml  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return NoGpus("nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NoGpus(f"no NVIDIA driver responds ({error})")
    return NvmlGpus(pynvml, torch_devices_by_uuid)


def torch_devices_by_uuid() -> dict[str, str]:
    """{"GPU-2f6c...": "cuda:0"} for the GPUs that torch can use in this process."""
    if not torch.cuda.is_available():
        return {}
    devices = {}
    for index in range(torch.cuda.device_count()):
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        devices[uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"] = f"cuda:{index}"
    return devices


def _throttle_words(bits: int) -> tuple[str, ...]:
    return tuple(words for bit, words in _THROTTLE_BITS.items() if bits & bit)


def _scaled(value: Any, scale: float) -> float | None:
    return None if value is None else float(value) * scale


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
