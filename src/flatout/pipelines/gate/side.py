"""One of the two models of a gate: its answers to the rows, what a call of it takes, and its size."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flatout.base.errors import DataError, ModelError, UsageError
from flatout.data.fitted.carried import CarriedColumns
from flatout.data.others import other_rows
from flatout.data.source import Batch
from flatout.packaging.onnx_libraries import library
from flatout.packaging.package import Package
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.packaging.runtimes.runtime import Runtime
from flatout.shrinking.metric import Costs
from flatout.shrinking.rows import prepared_rows
from flatout.shrinking.workshop.answers import Run, costs_of, with_log_probabilities

_AT_ONCE = 256
_CPU = torch.device("cpu")
Columns = dict[str, npt.NDArray[Any]]


class GateSide:
    """`name`: new or old."""

    def __init__(self, name: str, package: Package, data: Any, cache: Path | None, slices: Sequence[str] = ()) -> None:
        self.name, self.package = name, package
        self._data, self._cache, self._slices = data, cache, tuple(slices)

    @property
    def objective(self) -> str:
        return str(self.package.card["objective"])

    @property
    def classes(self) -> list[str] | None:
        found = self.package.fitted.signature.classes
        return None if found is None else list(map(str, found))

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.package.path.rglob("*") if file.is_file())

    def read(self, say: Callable[[str], None]) -> tuple[Batch, Columns]:
        """Prepared rows with labels, and the columns that slice them."""
        carried = CarriedColumns(list(self._slices))
        source = other_rows(self.package.fitted, self._data, targets=True, cache=self._cache, carried=carried, say=say)
        if source.stream is not None:
            raise DataError("a gate compares the same rows twice, which a stream gives only once: give a file or arrays")
        rows = prepared_rows(self.package, source, torch.arange(len(source)))
        if len(rows["y"]) < len(source):
            raise DataError(
                f"{len(source):,} rows do not fit into the memory that a gate takes, only {len(rows['y']):,}: give fewer rows"
            )
        return rows, carried.joined({})

    def costs(self, rows: Batch) -> Costs:
        found = costs_of(self.objective, self._run, rows, _AT_ONCE)
        for name, column in found.items():
            if not np.isfinite(column).all():
                raise ModelError(f"the answers of the {self.name} model are not finite in {name}, so it can't be judged")
        return found

    @cached_property
    def runtime(self) -> Runtime:
        parts = self.package.parts(_CPU)
        kind = OnnxRuntime if OnnxRuntime.why_not(parts) is None else EagerRuntime
        if (why := kind.why_not(parts)) is not None:
            raise ModelError(f"the {self.name} model, {self.package.path}, can't run here: {why}")
        return kind.load(parts)

    @property
    def _run(self) -> Run:
        if self.objective != "next_token":
            return self.runtime.run
        file = self.package.path / "model.onnx"
        if not file.exists():
            raise UsageError(f"the loss of a text model needs model.onnx, which {self.package.path} does not have")
        with tempfile.TemporaryDirectory(prefix="flatout-gate-") as folder:
            path = Path(folder) / "losses.onnx"
            path.write_bytes(with_log_probabilities(library("onnx").load(file)).SerializeToString())
            return OnnxRuntime(path, _CPU).run
