"""The predicted time of a step, its bottleneck, and the work of each group of operations. Immutable; stored with the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMPUTE = "compute"
MEMORY = "memory bandwidth"
LAUNCH = "launching kernels"
TRANSFER = "copying batches to the device"
INPUT = "reading data"
BOUNDS = (COMPUTE, MEMORY, LAUNCH, TRANSFER, INPUT)


@dataclass(frozen=True)
class OperatorGroup:
    """Seconds are device time; on a CPU, which calls and computes in turns, they include the calls."""

    name: str
    flops: float
    bytes: float
    operators: float
    seconds: float
    bound: str

    @property
    def intensity(self) -> float:
        """FLOP per byte moved."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Prediction:
    """From counted work and measured ceilings. `reason`: why there is no prediction.

    `shares`: share of each bound in the step's time, the largest is `bound`. Work hidden behind longer work has none.
    """

    step_s: float | None = None
    flops_per_sample: float | None = None
    ceiling_flops: float | None = None
    bound: str = "unknown"
    share: float | None = None
    reason: str = ""
    ceiling_bytes_per_s: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    groups: tuple[OperatorGroup, ...] = ()
    idle_w: float | None = None  # of the device while nothing runs; None: no meter
    calls_s: float = 0.0  # host time to call the operators ahead of a device; it may be hidden behind the step

    def __post_init__(self) -> None:
        """Convert stored groups back to objects; runs of older versions have none."""
        groups = tuple(OperatorGroup(**group) if isinstance(group, Mapping) else group for group in self.groups)
        object.__setattr__(self, "groups", groups)

    def rate(self, batch: int) -> float | None:
        return batch / self.step_s if self.step_s else None
