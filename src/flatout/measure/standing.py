"""The standing of a search: its current state (settings, remedies, a model), and the trial that measured it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, Protocol, TypeVar


class TrialResult(Protocol):
    """The result of a trial. `failure` is empty, or one word for what went wrong; `why` has the details."""

    @property
    def failure(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def first_s(self) -> float | None: ...  # until the end of the first step, including building and compiling
    @property
    def steps_s(self) -> tuple[float, ...]: ...  # seconds of a step, repeat by repeat
    @property
    def against_s(self) -> tuple[float, ...]: ...  # of the baseline, timed in turns; empty: not in turns
    @property
    def peak_bytes(self) -> int | None: ...
    @property
    def check(self) -> Mapping[str, Any] | None: ...  # first step compared with the baseline's: `passed`, `why`
    @property
    def took_s(self) -> float: ...


StateT = TypeVar("StateT")
ResultT = TypeVar("ResultT", bound=TrialResult)


@dataclass(frozen=True)
class Standing(Generic[StateT, ResultT]):
    state: StateT
    result: ResultT
    at_s: float = field(default_factory=time.monotonic)  # when it was measured

    @property
    def step_s(self) -> float:
        return median(self.result.steps_s)


def median_s(times_s: Sequence[float]) -> float | None:
    return median(times_s) if times_s else None
