"""What is asked of a canary or a shadow."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flatout.serving.canary.limits import CanaryLimits


@dataclass(frozen=True)
class CanaryOptions:
    """`model` is the name of the model whose next version is at `path`. `key` is header:NAME or column:NAME. The version that
    lost stays warm for `keep_s`. `folder` has the state and the receipts. `control`: times are compared with those of a process
    with the stable version that gets as many requests as the canary."""

    model: str
    path: Path
    folder: Path
    shadow: bool = False
    key: str | None = None
    keep_s: float = 600.0
    limits: CanaryLimits = field(default_factory=CanaryLimits)
    control: bool = True
