"""What a supervisor knows about the processes that it started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.serving.control import ControlLine


@dataclass(frozen=True)
class RunningModel:
    """One version, as fronts are told about it."""

    name: str
    version: str
    number: int
    path: Path
    goal: str | None
    place: int  # of its counters


@dataclass
class RunningExecutor:
    name: str
    device: str
    models: tuple[RunningModel, ...]
    pid: int
    line: ControlLine
    ready: asyncio.Future[list[Mapping[str, Any]]]
    alive_s: float
    is_ready: bool = False
    has_ended: bool = False
    statistics: Mapping[str, Any] = field(default_factory=dict)
    unretired: set[int] = field(default_factory=set)  # fronts that still wait for answers from it
    retires: bool = False
    takes_files: frozenset[int] = frozenset()  # numbers of models whose photos it decodes


@dataclass
class RunningFront:
    slot: int
    pid: int
    line: ControlLine
    ready: asyncio.Future[float]
    alive_s: float
    arena: int = -1
    is_ready: bool = False
    took: int = 0  # the order in which the models were changed that it serves
    busy_looks: int = 0
    has_ended: bool = False
    drained: bool = False
