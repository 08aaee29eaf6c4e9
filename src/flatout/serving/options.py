"""What a server is asked to do. Goes to the fronts as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flatout.serving.canary.options import CanaryOptions
from flatout.serving.drift.watch import DriftOptions


@dataclass(frozen=True)
class WantedModel:
    """A model by its name. `goal` is its latency goal as written; None takes the server's."""

    name: str
    path: Path
    goal: str | None = None


@dataclass(frozen=True)
class FrontOptions:
    """`before` and `after` name hooks, `module:function`. Files are paths as text. `grpc_address` is one that the server has
    reserved; None is no gRPC."""

    token: str | None = None
    certificate: str | None = None
    key: str | None = None
    before: str | None = None
    after: str | None = None
    access_log: str | None = None
    sample_share: float = 0.0
    sample_folder: str | None = None
    grpc_address: str | None = None
    watches_drift: bool = False
    arena_bytes: int = 256 << 20
    limits: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> FrontOptions:
        return cls(**written)


@dataclass(frozen=True)
class ServeOptions:
    """`workers` is how many fronts there are; None measures how many are needed. `executors` are the processes for the models
    of each device. `drain_s` is the time that requests
    under way have after SIGTERM. `photos_on` is where photos are decoded: "host", "device", or "auto": see device_photos."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    goal: str | None = None
    device: str = "auto"
    workers: int | None = None
    executors: int = 1
    compilers: bool = False
    photos_on: str = "auto"
    drain_s: float = 30.0
    hang_s: float = 20.0
    cache: Path | None = None
    explains: bool = False
    canary: CanaryOptions | None = None
    drift: DriftOptions | None = None
    front: FrontOptions = field(default_factory=FrontOptions)
