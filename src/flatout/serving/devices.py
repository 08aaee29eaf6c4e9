"""Batches on a device: preallocated memory for their rows, the run, and their outputs on the host."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.packaging.program import dtype_named
from flatout.packaging.runtimes.runtime import Runtime
from flatout.serving.batching import ReadyBatch, Sizes
from flatout.serving.gathering import BatchPlaces, gather, items_of, places_in_order, places_of
from flatout.serving.loading import LoadedModel
from flatout.serving.photo_files import FILES
from flatout.serving.rows_in_rooms import RoomLayout

Array = np.ndarray[Any, Any]

_MOST_SHAPES = 64  # whose memory is kept
_FEW_ROWS = 16


class BatchMemory:
    """Rows of one shape for batches of one model. It grows to the largest batch that came."""

    def __init__(self, model: LoadedModel, layout: RoomLayout, pinned: bool) -> None:
        self._model, self._layout, self._pinned = model, layout, pinned
        self._rows = 0
        self.arrays: list[Array] = []
        self.items: list[Array] = []
        self._tensors: dict[str, Tensor] = {}
        self._slices: dict[int, dict[str, Tensor]] = {}
        self._array_slices: dict[int, dict[str, Array]] = {}

    def hold(self, rows: int) -> None:
        if rows <= self._rows:
            return
        room = max(_FEW_ROWS, 1 << (rows - 1).bit_length())
        fields = self._layout.inputs.fields
        self._tensors = {
            one.name: torch.empty((room, *one.shape), dtype=dtype_named(port.dtype), pin_memory=self._pinned)
            for one, port in zip(fields, self._model.inputs, strict=True)
        }
        self._slices.clear()
        self._array_slices.clear()
        self.arrays = [as_array(self._tensors[one.name]) for one in fields]
        self.items = [items_of(one, array) for one, array in zip(fields, self.arrays, strict=True)]
        self._rows = room

    def rows(self, count: int) -> dict[str, Tensor]:
        found = self._slices.get(count)
        if found is None:
            found = self._slices[count] = {name: tensor[:count] for name, tensor in self._tensors.items()}
        return found

    def array_rows(self, count: int) -> dict[str, Array]:
        found = self._array_slices.get(count)
        if found is None:
            names = zip(self._tensors, self.arrays, strict=True)
            found = self._array_slices[count] = {name: array[:count] for name, array in names}
        return found


def as_array(tensor: Tensor) -> Array:
    """The same memory for NumPy, which has no bfloat16: those are the bits."""
    if tensor.dtype is torch.bfloat16:
        return as_array(tensor.view(torch.int16)).view(np.uint16)
    array: Array = tensor.numpy()
    return array


class Flight:
    """A batch on its way. `outputs` are on the host when `is_done`."""

    __slots__ = ("batch", "began_s", "compute_s", "copy_s", "outputs", "places")

    def __init__(self, batch: ReadyBatch, places: BatchPlaces, began_s: float) -> None:
        self.batch, self.places, self.began_s = batch, places, began_s
        self.copy_s = self.compute_s = 0.0
        self.outputs: dict[str, Array] = {}

    def is_done(self) -> bool:
        return True

    def finish(self) -> None:
        """Called once, when it is done."""


Memories = dict[tuple[int, Sizes], BatchMemory]


class ServingDevice(ABC):
    """Takes up to `most_flights` batches at a time."""

    most_flights: int

    @abstractmethod
    def launch(self, model: LoadedModel, batch: ReadyBatch) -> Flight:
        """Errors of the model are raised here."""


def serving_device(device: torch.device) -> ServingDevice:
    return CudaServing(device) if device.type == "cuda" else HostServing()


class HostServing(ServingDevice):
    """The CPU: a batch is done when it is launched."""

    most_flights = 1

    def __init__(self) -> None:
        self._memories: Memories = {}

    def launch(self, model: LoadedModel, batch: ReadyBatch) -> Flight:
        began_s = time.monotonic()
        layout, runtime = model.layout(batch.sizes), model.runtime
        if batch.sizes == FILES and model.photos is not None:
            flight = Flight(batch, places_in_order(batch, layout), began_s)
            run: Callable[[], dict[str, Array]] = partial(_run_tensors, runtime, model.photos.inputs(batch.requests))
        else:
            flight = Flight(batch, places_of(batch, layout), began_s)
            memory = _memory_for(self._memories, model, layout, pinned=False)
            memory.hold(batch.rows)
            gather(flight.places, memory.arrays, memory.items)
            if runtime.takes_arrays:
                run = partial(runtime.run_arrays, memory.array_rows(batch.rows))
            else:
                run = partial(_run_tensors, runtime, memory.rows(batch.rows))
        run_s = time.monotonic()
        outputs = run()
        flight.compute_s = time.monotonic() - run_s
        flight.copy_s = run_s - began_s
        flight.outputs = outputs
        return flight


def _run_tensors(runtime: Runtime, given: dict[str, Tensor]) -> dict[str, Array]:
    return {name: as_array(tensor) for name, tensor in runtime.run(given).items()}


class CudaServing(ServingDevice):
    """Two batches in flight: while one is computed, the rows of the next are copied to the device on a stream of their own."""

    most_flights = 2

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)
        # memory of a flight is used again only when it has ended
        self._free: list[Memories] = [{} for _ in range(self.most_flights)]

    def launch(self, model: LoadedModel, batch: ReadyBatch) -> Flight:
        began_s = time.monotonic()
        layout = model.layout(batch.sizes)
        as_files = batch.sizes == FILES and model.photos is not None
        places = places_in_order(batch, layout) if as_files else places_of(batch, layout)
        memories = self._free.pop()
        flight = CudaFlight(batch, places, began_s, lambda: self._free.append(memories))
        try:
            given = self._decoded(flight, model) if as_files else self._copied(flight, model, memories)
            flight.run_begin.record()
            made = model.runtime.run(given)
            flight.run_end.record()
            flight.bring(made)
        except BaseException:
            torch.cuda.synchronize(self._device)  # nothing may still read the memory of this flight
            self._free.append(memories)
            raise
        return flight

    def _copied(self, flight: CudaFlight, model: LoadedModel, memories: Memories) -> dict[str, Tensor]:
        rows = flight.batch.rows
        memory = _memory_for(memories, model, flight.places.layout, pinned=True)
        memory.hold(rows)
        gather(flight.places, memory.arrays, memory.items)
        flight.copy_s = time.monotonic() - flight.began_s
        compute = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copies):
            flight.copy_begin.record()
            given = {name: column.to(self._device, non_blocking=True) for name, column in memory.rows(rows).items()}
            flight.copy_end.record()
        compute.wait_event(flight.copy_end)
        for tensor in given.values():
            tensor.record_stream(compute)  # its memory belongs to the stream of copies
        return given

    def _decoded(self, flight: CudaFlight, model: LoadedModel) -> dict[str, Tensor]:
        """nvJPEG is waited for here: the time to decode counts as time to copy."""
        assert model.photos is not None
        flight.copy_begin.record()
        flight.copy_end.record()
        given = model.photos.inputs(flight.batch.requests)
        flight.copy_s = time.monotonic() - flight.began_s
        return given


class CudaFlight(Flight):
    __slots__ = ("_give_back", "_pinned", "copy_begin", "copy_end", "end", "run_begin", "run_end")

    def __init__(self, batch: ReadyBatch, places: BatchPlaces, began_s: float, give_back: Any) -> None:
        super().__init__(batch, places, began_s)
        self._give_back = give_back
        timed = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self.copy_begin, self.copy_end, self.run_begin, self.run_end = timed
        self.end = torch.cuda.Event()
        self._pinned: dict[str, Tensor] = {}

    def bring(self, made: dict[str, Tensor]) -> None:
        """Outputs go to the host behind the computation, without waiting."""
        for name, tensor in made.items():
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)  # torch keeps such memory for the next
            self._pinned[name] = pinned.copy_(tensor, non_blocking=True)
        self.end.record()

    def is_done(self) -> bool:
        return bool(self.end.query())

    def finish(self) -> None:
        self.copy_s += self.copy_begin.elapsed_time(self.copy_end) / 1e3
        self.compute_s = self.run_begin.elapsed_time(self.run_end) / 1e3
        self.outputs = {name: as_array(tensor) for name, tensor in self._pinned.items()}
        self._give_back()


def _memory_for(memories: Memories, model: LoadedModel, layout: RoomLayout, pinned: bool) -> BatchMemory:
    key = (model.order.number, layout.sizes)
    found = memories.get(key)
    if found is None:
        if len(memories) >= _MOST_SHAPES:
            del memories[next(iter(memories))]
        found = memories[key] = BatchMemory(model, layout, pinned)
    return found
