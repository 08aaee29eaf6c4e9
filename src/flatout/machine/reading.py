"""One reading of a device's meters."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class MeterReading:
    """None: unavailable. `energy_j` is a counter with an arbitrary start: use differences only."""

    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    utilization: float | None = None  # 0 to 1
    memory_used_bytes: int | None = None

    @property
    def unavailable(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is None)
