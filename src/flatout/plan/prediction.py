"""What a step was predicted to take, what bounds it, and the work of each group of operations. Frozen and stored."""

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
    """The seconds are those of the device; on a CPU, which calls and computes by turns, those of the calls too."""

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
    """From counted work over measured ceilings. `reason` says why there is none.

    `shares` are those of the bounds in the step's time, the largest being `bound`: what hides behind something longer has none.
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
    calls_s: float = 0.0  # what the host takes to call the operators, ahead of a device: it may hide behind the step

    def __post_init__(self) -> None:
        """Groups that were stored come back as plain objects; runs from before there were any have none."""
        groups = tuple(OperatorGroup(**group) if isinstance(group, Mapping) else group for group in self.groups)
        object.__setattr__(self, "groups", groups)

    def rate(self, batch: int) -> float | None:
        return batch / self.step_s if self.step_s else None
