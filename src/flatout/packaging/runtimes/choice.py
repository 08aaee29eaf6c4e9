"""Which runtime is taken: all that can run here are compared with the samples and timed, and the fastest that agrees wins.

What was measured is kept in the cache, under the hash of the package and the machine, so each machine measures once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, ModelError
from flatout.packaging.parity import Parity, compare
from flatout.packaging.runtimes.ahead import AheadRuntime
from flatout.packaging.runtimes.compiled import CompiledRuntime
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.packaging.runtimes.runtime import Parts, Point, Runtime
from flatout.packaging.samples import Samples

RUNTIMES: tuple[type[Runtime], ...] = (EagerRuntime, OnnxRuntime, CompiledRuntime, AheadRuntime)
SIZES = (1, 8, 64, 512, 4096, 32768)  # until a batch takes a second or has no memory
_FORMAT = 2


@dataclass(frozen=True)
class Measured:
    """One runtime on this machine: its parity and curve, or in `why_not` why it is left out."""

    name: str
    why_not: str | None = None
    parity: Parity | None = None
    curve: tuple[Point, ...] = ()
    load_s: float = 0.0

    def seconds(self, batch: int) -> float | None:
        """The time of a batch of this size; between two measured sizes a straight line."""
        if not self.curve:
            return None
        below = [point for point in self.curve if point.batch <= batch]
        above = [point for point in self.curve if point.batch >= batch]
        if not below:
            return above[0].median_s
        low, high = below[-1], above[0] if above else below[-1]
        if low is high:
            return low.median_s * max(1.0, batch / low.batch)
        share = (batch - low.batch) / (high.batch - low.batch)
        return low.median_s + share * (high.median_s - low.median_s)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "why_not": self.why_not,
            "parity": None if self.parity is None else self.parity.to_json(),
            "curve": [point.to_json() for point in self.curve],
            "load_s": self.load_s,
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Measured:
        parity = written["parity"]
        return cls(
            written["name"],
            written["why_not"],
            None if parity is None else Parity(**{**parity, "batches": tuple(parity["batches"])}),
            tuple(Point.from_json(point) for point in written["curve"]),
            written["load_s"],
        )


def measure(
    parts: Parts,
    samples: Samples,
    kinds: Iterable[type[Runtime]] = RUNTIMES,
    sizes: Sequence[int] = SIZES,
    say: Callable[[str], None] = lambda line: None,
) -> list[Measured]:
    """Each runtime: why it can't run here, or its parity and, where that holds, its curve."""
    found = []
    for kind in kinds:
        say(f"comparing and timing {kind.name}")
        found.append(_measured(kind, parts, samples, sizes))
    return found


def _measured(kind: type[Runtime], parts: Parts, samples: Samples, sizes: Sequence[int]) -> Measured:
    if (why := kind.why_not(parts)) is not None:
        return Measured(kind.name, why)
    start = time.perf_counter()
    try:
        runtime = kind.load(parts)
    except FlatoutError as error:
        return Measured(kind.name, str(error))
    parity = compare(runtime.run, samples, parts.allowed)
    load_s = time.perf_counter() - start
    if not parity.holds:
        return Measured(kind.name, f"left out: {parity.problem}", parity, load_s=load_s)
    return Measured(kind.name, None, parity, tuple(runtime.curve(samples.rows, sizes)), load_s)


def fastest(measured: Iterable[Measured], batch: int) -> Measured:
    """ModelError if none agrees with the samples."""
    usable = [(seconds, one.name, one) for one in measured if (seconds := one.seconds(batch)) is not None]
    if not usable:
        why = "; ".join(f"{one.name}: {one.why_not}" for one in measured)
        raise ModelError(f"no runtime gives the run's own outputs ({why})")
    return min(usable)[2]


def runtime_named(name: str) -> type[Runtime]:
    return next(kind for kind in RUNTIMES if kind.name == name)


class MeasuredCache:
    """Measurements of one package on one machine and device. A cache that can't be read or written costs time only."""

    def __init__(self, folder: Path | None, package: str, machine: str) -> None:
        self._file = None if folder is None else folder / "packages" / package / f"{machine}.json"

    def load(self) -> list[Measured]:
        if self._file is None:
            return []
        try:
            written = json.loads(self._file.read_text())
            return [Measured.from_json(one) for one in written["runtimes"]] if written["format"] == _FORMAT else []
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []

    def save(self, measured: Sequence[Measured]) -> None:
        if self._file is None:
            return
        aside = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps({"format": _FORMAT, "runtimes": [one.to_json() for one in measured]}, indent=1))
            os.replace(aside, self._file)
        except OSError:
            aside.unlink(missing_ok=True)
