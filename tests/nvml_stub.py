"""NVML's library as flatout calls it, for machines without a GPU. Answers and errors have the form that NVML gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class NvmlStub:
    """Two GPUs; the first can't report its energy. The second uses 123.4 W, as its counter says at the times of `clock`.

    `unknown`: questions that this board refuses. `rights`: whether the power limit may be set.
    """

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0

    def __init__(
        self, *, unknown: Sequence[str] = (), rights: bool = False, clock: Callable[[], float] = lambda: 5 / 123.4
    ) -> None:
        self._unknown, self._rights, self._clock = unknown, rights, clock
        self.watts, self.limits = 123.4, {0: 700_000, 1: 700_000}

    def __getattr__(self, question: str) -> Any:
        if question in self._unknown:
            return self.refuse
        answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": lambda: b"580.95",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
            "nvmlDeviceGetName": lambda gpu: f"NVIDIA {gpu}",
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=10**9, used=10**8),
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: (9, 0),
            "nvmlDeviceGetPowerUsage": lambda gpu: round(self.watts * 1e3),
            "nvmlDeviceGetTotalEnergyConsumption": self.energy,
            "nvmlDeviceGetPowerManagementLimit": lambda gpu: self.limits[gpu],
            "nvmlDeviceGetPowerManagementLimitConstraints": lambda gpu: (200_000, 700_000),
            "nvmlDeviceSetPowerManagementLimit": self.limit,
            "nvmlDeviceGetTemperature": lambda gpu, sensor: 41,
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=50),
            "nvmlDeviceGetClockInfo": lambda gpu, kind: 1500 + gpu,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x41,
        }
        return answers.get(question, self.refuse)

    def energy(self, gpu: int) -> int:
        return self.refuse() if gpu == 0 else round(self._clock() * self.watts * 1e3)

    def limit(self, gpu: int, milliwatts: int) -> None:
        if not self._rights:
            raise self.NVMLError("Insufficient Permissions")
        self.limits[gpu] = milliwatts

    def refuse(self, *about: Any) -> Any:
        raise self.NVMLError("not supported")
