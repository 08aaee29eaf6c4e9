"""A package becomes a model that an executor runs: opened, compared with its samples, warm at every batch size it will use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import ModelError
from flatout.base.latency_goal import LatencyGoal
from flatout.packaging.package import Package, open_package
from flatout.packaging.ports import Port
from flatout.packaging.runtimes.choice import fastest, runtime_named
from flatout.packaging.runtimes.compiled import CompiledRuntime
from flatout.packaging.runtimes.runtime import Runtime
from flatout.serving.device_photos import DevicePhotos, device_photos
from flatout.serving.photo_files import FILES
from flatout.serving.records import RowLayout, open_sizes
from flatout.serving.rows_in_rooms import RoomLayout, check_open_dimensions

_MOST_BYTES = 64 << 20  # of the rows of one batch
_LARGEST = 4096
_DOUBLINGS = tuple(1 << power for power in range(_LARGEST.bit_length()))
_USUAL_CUDA, _USUAL_CPU = 64, 16  # the batch for which the fastest runtime is taken
_TIMED_S, _MOST_TIMES = 0.03, 5
_TOO_LONG_S = 0.5  # larger batches are not run
_NO_GAIN, _TIMES_NO_GAIN = 1.02, 3  # doublings that are not faster, after which no larger batch is tried


@dataclass(frozen=True)
class ModelOrder:
    """A model to load. `number` is that of ServedModel."""

    number: int
    name: str
    path: Path
    goal: LatencyGoal | None = None

    def to_json(self) -> dict[str, Any]:
        goal = None if self.goal is None else [self.goal.seconds, self.goal.share]
        return {"number": self.number, "name": self.name, "path": str(self.path), "goal": goal}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> ModelOrder:
        goal = None if written["goal"] is None else LatencyGoal(*written["goal"])
        return cls(written["number"], written["name"], Path(written["path"]), goal)


class LoadedModel:
    """`points` are (rows, seconds), measured when it was warmed; the last is the largest batch. `photos` decodes the files of
    requests here; None: fronts decode them."""

    def __init__(
        self, order: ModelOrder, package: Package, runtime: Runtime, device: torch.device, photos: DevicePhotos | None = None
    ) -> None:
        self.order, self.runtime, self.photos = order, runtime, photos
        self.inputs: tuple[Port, ...] = package.program.inputs
        self.outputs: tuple[Port, ...] = package.program.outputs
        check_open_dimensions(order.name, self.inputs, self.outputs)
        rows = {port.name: package.samples.rows[port.name] for port in self.inputs}
        self.usual_sizes = open_sizes(self.inputs, rows)
        self._layouts: dict[tuple[int, ...], RoomLayout] = {}
        row_bytes = RowLayout.of(self.inputs, self.usual_sizes).row_bytes
        largest = min(_LARGEST, 1 << max(0, (_MOST_BYTES // max(1, row_bytes)).bit_length() - 1))
        if photos is None:
            runtime.tune(rows)
        self.points = warmed(runtime, rows, largest, device)

    def layout(self, sizes: tuple[int, ...]) -> RoomLayout:
        found = self._layouts.get(sizes)
        if found is None:
            if len(self._layouts) >= 1024:
                self._layouts.clear()
            if sizes == FILES and self.photos is not None:
                found = self.photos.layout
            else:
                found = RoomLayout.of(self.inputs, self.outputs, sizes)
            self._layouts[sizes] = found
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.order.number,
            "name": self.order.name,
            "runtime": self.runtime.name,
            "curve": self.points,
            "takes_files": self.photos is not None,
        }


def load_model(
    order: ModelOrder,
    device: torch.device,
    cache: Path | None,
    *,
    compilers: bool = False,
    photos_on: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> LoadedModel:
    package = open_package(order.path)
    kind = _fastest_kind(package, device, cache, compilers, say)
    say(f"{order.name}: loading {kind.name}")
    runtime = package.runtime_of(kind, device, cache)
    photos = device_photos(package, runtime, device, photos_on, order.name, say)
    say(f"{order.name}: warming batches")
    return LoadedModel(order, package, runtime, device, photos)


def _fastest_kind(
    package: Package, device: torch.device, cache: Path | None, compilers: bool, say: Callable[[str], None]
) -> type[Runtime]:
    """By what was measured here. On a GPU that has measured nothing yet it is the compiled one: to compile every kind, only
    to compare them, would keep the port closed for minutes; `flatout explain` of the package does it."""
    usual = _USUAL_CUDA if device.type == "cuda" else _USUAL_CPU
    if device.type == "cuda" and compilers and not package.measured_before(device, cache):
        return CompiledRuntime
    return runtime_named(fastest(package.measured(device, cache, compilers=compilers, say=say), usual).name)


def with_steps(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The curve of a runtime that pads batches: one row more than a size costs as much as the next size."""
    made: list[tuple[int, float]] = []
    for rows, seconds in points:
        if made and made[-1][0] + 1 < rows:
            made.append((made[-1][0] + 1, seconds))
        made.append((rows, seconds))
    return made


def warmed(runtime: Runtime, rows: Mapping[str, Tensor], largest: int, device: torch.device) -> list[tuple[int, float]]:
    """Runs batches of all sizes of the runtime, or of 1, 2, 4, ... rows, and times them. Ends where memory ends, or where
    larger ones do not pay."""
    points: list[tuple[int, float]] = []
    best, without_gain = 0.0, 0
    for size in runtime.sizes or _DOUBLINGS:
        if size > largest or without_gain >= (1 if runtime.sizes else _TIMES_NO_GAIN):
            break
        given = _repeated(rows, size, device)
        try:
            seconds = _seconds(runtime, given)
            times = [_seconds(runtime, given)]
            while len(times) < _MOST_TIMES and sum(times) < _TIMED_S:
                times.append(_seconds(runtime, given))
        except torch.OutOfMemoryError:
            if not points:
                raise
            break
        seconds = sorted(times)[len(times) // 2]
        points.append((size, seconds))
        without_gain = 0 if size / seconds > _NO_GAIN * best else without_gain + 1
        best = max(best, size / seconds)
        if 2 * seconds > _TOO_LONG_S:
            break
    if not points:
        raise ModelError("no batch could be run")
    return with_steps(points) if runtime.sizes else points


def _repeated(rows: Mapping[str, Tensor], size: int, device: torch.device) -> dict[str, Tensor]:
    places = torch.arange(size) % len(next(iter(rows.values())))
    found = {name: column.index_select(0, places) for name, column in rows.items()}
    return {name: column.pin_memory() for name, column in found.items()} if device.type == "cuda" else found


def _seconds(runtime: Runtime, rows: dict[str, Tensor]) -> float:
    began_s = time.perf_counter()
    for output in runtime.run(rows).values():
        output.cpu()
    return time.perf_counter() - began_s
