"""The protocol of runtimes, and the curve of latency by batch size that each can measure."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.source import Batch
from flatout.engine.precision import autocast
from flatout.packaging.code_program import CodeProgram
from flatout.packaging.onnx_program import OnnxProgram
from flatout.packaging.parity import TOLERANCES
from flatout.packaging.ports import Port
from flatout.packaging.program import Program, dtype_named

Array = np.ndarray[Any, Any]

_REPEATS, _MOST_S = 25, 0.3
_SLOW_S = 0.25  # calls of this length need no warm-up and few repeats
_TOO_LONG_S = 1.0  # larger batches are not timed
_MOST_BYTES = 2 << 30  # of a batch's rows on the host


@dataclass(frozen=True)
class Parts:
    """What a runtime is built from: the program with its weights, its ONNX file if there is one, and a folder for what is
    compiled on this machine. `tolerance`: of a package that has its own, instead of that of its precision."""

    program: Program | CodeProgram | OnnxProgram
    weights: Mapping[str, Tensor]
    device: torch.device
    precision: str = "fp32"
    onnx: Path | None = None
    compiled: Path | None = None
    tolerance: float | None = None

    @property
    def allowed(self) -> float:
        """The largest difference from the stored outputs."""
        return TOLERANCES[self.precision] if self.tolerance is None else self.tolerance


@dataclass(frozen=True)
class Point:
    """A batch of `batch` rows takes `median_s`; half of the repeats lie between `low_s` and `high_s`."""

    batch: int
    median_s: float
    low_s: float
    high_s: float
    repeats: int

    @property
    def rows_per_s(self) -> float:
        return self.batch / self.median_s

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Point:
        return cls(**written)


class Runtime(ABC):
    """Named outputs for the tensors of prepared rows."""

    name: ClassVar[str]
    needs_compiler: ClassVar[bool] = False
    sizes: tuple[int, ...] | None = None
    """The batch sizes that it computes: a batch is padded to the next one. None if it computes any size as it is."""

    takes_arrays: bool = False
    """Whether `run_arrays` does what `run` does, without the way through tensors."""

    @classmethod
    @abstractmethod
    def why_not(cls, parts: Parts) -> str | None:
        """Why it can't run here, in words; None if it can."""

    @classmethod
    @abstractmethod
    def load(cls, parts: Parts) -> Runtime: ...

    @abstractmethod
    def run(self, rows: Batch) -> dict[str, Tensor]:
        """Outputs on the device of the runtime; the next call does not change them. A batch may have no rows."""

    def tune(self, rows: Batch) -> int:
        """Measures what makes small batches quicker on this machine, for a server that will run many; `rows` are samples.
        Returns the size of the largest batch for which it changed something."""
        return 0

    def run_arrays(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """`run` from NumPy to NumPy, on a CPU. Only with `takes_arrays`."""
        raise NotImplementedError(f"{self.name} takes tensors")

    def curve(self, rows: Batch, sizes: Sequence[int]) -> list[Point]:
        """The time of one call by batch size, with the results on the host. Ends before a size without memory or too slow."""
        points: list[Point] = []
        row_bytes = sum(column[:1].nbytes for column in rows.values())
        for size in sizes:
            if (points and points[-1].median_s * size / points[-1].batch > _TOO_LONG_S) or size * row_bytes > _MOST_BYTES:
                break
            try:
                points.append(self._timed(_repeated(rows, size), size))
            except torch.OutOfMemoryError:
                break
        return points

    def _timed(self, rows: Batch, size: int) -> Point:
        first = self._seconds(rows)  # the first call allocates, and may capture a graph
        least = 2 if first > _SLOW_S else 5
        times: list[float] = []
        while len(times) < _REPEATS and (len(times) < least or sum(times) < _MOST_S):
            times.append(self._seconds(rows))
        times.sort()
        quarter = len(times) // 4
        return Point(size, median(times), times[quarter], times[-1 - quarter], len(times))

    def _seconds(self, rows: Batch) -> float:
        start = time.perf_counter()
        for output in self.run(rows).values():
            output.cpu()
        return time.perf_counter() - start


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """autocast. fp32 on a GPU is exact: torch otherwise rounds the inputs of convolutions to 10 bits."""
    if precision == "fp32" and device.type == "cuda":
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    else:
        with autocast(precision, device):
            yield


def columns_of(ports: Sequence[Port], rows: Batch) -> list[Tensor]:
    """The columns of the program's inputs, in order, where they are.

    DataError for a column that is missing, or for fractions where the program takes whole numbers.
    """
    given = []
    for port in ports:
        if port.name not in rows:
            raise DataError(f"the rows have no column {port.name!r}, which the program takes; they have {', '.join(rows)}")
        column = rows[port.name]
        if column.is_floating_point() and not dtype_named(port.dtype).is_floating_point:
            raise DataError(f"column {port.name!r} is {port.dtype} in the program, got {column.dtype}")
        given.append(column)
    return given


def inputs_of(ports: Sequence[Port], rows: Batch, device: torch.device) -> list[Tensor]:
    """The same columns on the device and in the program's types."""
    given = columns_of(ports, rows)
    return [one.to(device, dtype_named(port.dtype), non_blocking=True) for port, one in zip(ports, given, strict=True)]


def without_rows(ports: Sequence[Port], device: torch.device) -> dict[str, Tensor]:
    """The outputs of a batch that has no rows. A compiled program may have been made for one row or more."""
    sizes = {port.name: [size or 0 for size in port.shape] for port in ports}
    return {port.name: torch.empty(sizes[port.name], dtype=dtype_named(port.dtype), device=device) for port in ports}


def _repeated(rows: Batch, size: int) -> Batch:
    have = len(next(iter(rows.values())))
    places = torch.arange(size) % have
    return {name: column.index_select(0, places.to(column.device)) for name, column in rows.items()}
