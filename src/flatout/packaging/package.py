"""A package in use: checked when it is opened, then rows in and named answers out.

package = open_package(Path("package"))      # every file is compared with the manifest
package.predict({"age": [39], "job": ["cook"]})
model = package.model()                      # an nn.Module that takes raw rows as one batch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import DamagedFile, DataError, MachineError, MissingFile, ModelError
from flatout.base.trust import private_cache
from flatout.data.feeds.evaluation import EvalFeed
from flatout.data.fitted import Fitted
from flatout.data.fitted.carried import CarriedColumns
from flatout.data.others import other_batch, other_rows, own_rows
from flatout.data.source import Batch
from flatout.machine.facts import fingerprint, read_facts
from flatout.packaging.answering import Preparation
from flatout.packaging.card import read_card
from flatout.packaging.code_program import CodeProgram
from flatout.packaging.folder import PackageFolder
from flatout.packaging.onnx_program import OnnxProgram
from flatout.packaging.parity import compare
from flatout.packaging.program import Program
from flatout.packaging.runtimes.choice import RUNTIMES, SIZES, Measured, MeasuredCache, fastest, measure, runtime_named
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.packaging.runtimes.runtime import Parts, Runtime
from flatout.packaging.samples import Samples, same_values
from flatout.packaging.statistics import STATISTICS, RowStatistics
from flatout.store.tensors import read_tensors

_ROWS_AT_ONCE = 8192
_FEW_SAMPLES = 2
_FEW_ROWS = 4096  # fewer are answered sooner than runtimes are compared


def open_package(path: Path) -> Package:
    """Checks every file against the manifest: DamagedFile names one that differs."""
    folder = PackageFolder(path)
    folder.check()
    return Package(folder)


@dataclass(frozen=True)
class Package:
    folder: PackageFolder

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def card(self) -> dict[str, Any]:
        return self.folder.parsed("card.json", read_card)

    @cached_property
    def fitted(self) -> Fitted:
        return self.folder.parsed("fitted.json", Fitted.from_json)

    @cached_property
    def program(self) -> Program | CodeProgram | OnnxProgram:
        """A graph; for a model that can't be written as one, the import path of its code; or nothing beside an ONNX file."""
        if "onnx.json" in self.folder.names():
            return self.folder.parsed("onnx.json", OnnxProgram.from_json)
        if "code.json" in self.folder.names():
            return self.folder.parsed("code.json", CodeProgram.from_json)
        return self.folder.parsed("program.json", Program.from_json)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        if not self.program.weight_names:
            return {}
        tensors = read_tensors(self.path / "weights.safetensors")
        for name in self.program.weight_names:
            if name not in tensors:
                raise DamagedFile(f"{self.path / 'weights.safetensors'} has no tensor {name!r}, which the program uses")
        return tensors

    @cached_property
    def samples(self) -> Samples:
        try:
            raw = self.folder.parsed("samples.json", lambda content: content)
        except MissingFile:
            raw = None
        file = self.path / "samples.safetensors"
        found = Samples.from_tensors(read_tensors(file), str(self.card["samples"]["origin"]), raw)
        if not {port.name for port in self.program.inputs} <= found.rows.keys() or len(found) == 0:
            raise DamagedFile(f"{file} has no samples of the program's inputs")
        return found

    @cached_property
    def statistics(self) -> RowStatistics | None:
        """None for packages that were exported without the run's data, or by an earlier flatout."""
        return self.folder.parsed(STATISTICS, RowStatistics.from_json) if STATISTICS in self.folder.names() else None

    def parts(self, device: torch.device, cache: Path | None = None) -> Parts:
        precision = self.card["precision"] if device.type == "cuda" else "fp32"
        onnx = self.path / "model.onnx"
        compiled = None if cache is None else private_cache(cache) / "packages" / self.folder.hash  # libraries are run
        there = onnx if onnx.exists() else None
        return Parts(self.program, self.weights, device, precision, there, compiled, self.card.get("tolerance"))

    def measured(
        self,
        device: torch.device,
        cache: Path | None,
        *,
        compilers: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> list[Measured]:
        """The runtimes on this machine, measured once and kept in the cache; those that compile only with `compilers`."""
        kept = self._kept(device, cache)
        known = {one.name: one for one in kept.load()}
        wanted = [kind for kind in RUNTIMES if kind.name not in known and (compilers or not kind.needs_compiler)]
        if wanted:
            known |= {one.name: one for one in measure(self.parts(device, cache), self.samples, wanted, SIZES, say)}
            kept.save(list(known.values()))
        return [known[kind.name] for kind in RUNTIMES if kind.name in known]

    def measured_before(self, device: torch.device, cache: Path | None) -> list[Measured]:
        """What the cache has, without measuring."""
        return self._kept(device, cache).load()

    def _kept(self, device: torch.device, cache: Path | None) -> MeasuredCache:
        machine = f"{fingerprint(read_facts())}-{str(device).replace(':', '')}"
        return MeasuredCache(None if cache is None else private_cache(cache), self.folder.hash, machine)

    def runtime(self, device: torch.device, cache: Path | None, batch: int) -> Runtime:
        """The fastest for batches of this size among those measured here; it is compared with the samples again."""
        best = fastest(self.measured(device, cache), batch)
        return self.runtime_of(runtime_named(best.name), device, cache)

    def runtime_of(self, kind: type[Runtime], device: torch.device, cache: Path | None) -> Runtime:
        """This runtime, compared with the samples, the preparation of raw rows too: ModelError if it differs."""
        parts = self.parts(device, cache)
        made = kind.load(parts)
        self.check_preparation()
        parity = compare(made.run, self.samples, parts.allowed)
        if not parity.holds:
            raise ModelError(f"{kind.name} does not give the run's outputs here: {parity.problem}")
        return made

    def check_preparation(self) -> None:
        """DataError if the raw samples are no longer prepared as they were at the export."""
        if self.samples.raw is None:
            return
        for name, column in self.fitted.rows(self.samples.raw).items():
            if name in self.samples.rows and not same_values(column, self.samples.rows[name]):
                raise DataError(f"raw rows are prepared differently here: {name} of the samples in {self.path} differs")

    def model(self, device: str = "cpu") -> PackagedModel:
        """In eval mode. It takes raw rows as one batch, as `predict` does, and returns the columns of `predict` as tensors."""
        place = torch.device(device)
        runtime = self._quick(place)
        module = _Answers(runtime, self.program) if isinstance(self.program, OnnxProgram) else None
        return PackagedModel(self.fitted, self.program, module or self.program.module(self.weights, place), place)

    def predict(
        self,
        data: Any,
        *,
        keep: str | Sequence[str] = (),
        each_class: bool = False,
        device: torch.device | None = None,
        cache: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> dict[str, Any]:
        """Columns of predictions for every row, in the order of the data, as `fo.predict` gives them for the run."""
        place = torch.device("cpu") if device is None else device
        carried = CarriedColumns(keep)
        source = other_rows(self.fitted, data, targets=False, cache=cache, carried=carried, say=say)
        names = [port.name for port in self.program.inputs]
        by_name = [name for name in names if name in self.fitted.columns()]  # a table's inputs get their names in the program
        self.fitted.check_columns(source.schema, by_name, str(data) if isinstance(data, str | Path) else "the data")
        rows = source.stored_rows(_ROWS_AT_ONCE)
        known = len(source) if source.in_memory else _FEW_ROWS
        runtime = self._quick(place) if known < _FEW_ROWS else self.runtime(place, cache, min(rows, known))
        before = Preparation(self.fitted).before
        pieces: dict[str, list[Tensor]] = {}
        for batch in EvalFeed(source, before.steps, rows, place, "resident" if source.in_memory else "streamed"):
            for name, column in runtime.run({name: batch[name] for name in names}).items():
                pieces.setdefault(name, []).append(column.cpu())
        columns = own_rows(source, {name: torch.cat(some) for name, some in pieces.items()}, carried, say)
        return carried.joined(self.fitted.name_outputs(columns, str(self.card["objective"]), each_class=each_class))

    def generate(
        self,
        prompt: Any,
        *,
        tokens: int = 200,
        stop: str | Sequence[str] = (),
        stream: bool = False,
        device: torch.device | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> Any:
        """As `Run.generate`, always greedy: a package has the most likely next token only, not the probabilities of others."""
        from flatout.engine.generation.options import GenerateOptions  # here: other packages load sooner without it
        from flatout.packaging.generating import generate_packaged

        place = torch.device("cpu") if device is None else device
        options = GenerateOptions(tokens, greedy=True, stop=stop)
        run, objective = self._quick(place).run, str(self.card["objective"])
        how: Any = {"device": place, "stream": stream, "say": say}
        return generate_packaged(self.fitted, objective, self.program.inputs, run, prompt, options, **how)

    def _quick(self, device: torch.device) -> Runtime:
        """The runtime that needs no comparison with others: eager, or the only one of a package that is an ONNX file."""
        kind = OnnxRuntime if isinstance(self.program, OnnxProgram) else EagerRuntime
        parts = self.parts(device)
        if (why := kind.why_not(parts)) is not None:
            raise MachineError(why)
        return self._checked(kind.load(parts), device)

    def _checked(self, runtime: Runtime, device: torch.device) -> Runtime:
        """The same runtime. ModelError if it does not give the run's outputs on the first samples."""
        parity = compare(runtime.run, self.samples.first(_FEW_SAMPLES), self.parts(device).allowed)
        if not parity.holds:
            raise ModelError(f"{runtime.name} does not give the run's outputs with {self.path}: {parity.problem}")
        return runtime


class _Answers(nn.Module):
    """A runtime as a module: inputs and outputs in the order of the program."""

    def __init__(self, runtime: Runtime, program: OnnxProgram) -> None:
        super().__init__()
        self._runtime, self._program = runtime, program

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        rows = {port.name: column for port, column in zip(self._program.inputs, columns, strict=True)}
        made = self._runtime.run(rows)
        return tuple(made[port.name] for port in self._program.outputs)


class PackagedModel(nn.Module):
    """Raw rows in, named tensors out, on the device that it was made for: `package.model("cuda")` makes one for a GPU."""

    def __init__(
        self, fitted: Fitted, program: Program | CodeProgram | OnnxProgram, module: nn.Module, device: torch.device
    ) -> None:
        super().__init__()
        self.program = module
        self._fitted, self._before, self._place = fitted, Preparation(fitted).before, device
        self._inputs = tuple(port.name for port in program.inputs)
        self._outputs = tuple(port.name for port in program.outputs)
        self.eval()

    def forward(self, rows: Any) -> dict[str, Tensor]:
        """`rows` as the run's host part takes them: columns by name, photos, texts or arrays."""
        batch: Batch = {name: column.to(self._place) for name, column in other_batch(self._fitted, rows).items()}
        prepared: Mapping[str, Tensor] = self._before(batch)
        for name in self._inputs:
            if name not in prepared:
                raise DataError(f"the rows have no column {name!r}, which the model takes; they have {', '.join(prepared)}")
        made = self.program(*(prepared[name] for name in self._inputs))
        return dict(zip(self._outputs, made, strict=True))
