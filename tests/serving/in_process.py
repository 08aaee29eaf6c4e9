"""The executors of a front's tests: rows are run in this process, one request at a time, by the package's eager runtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.serving.asking import NoRoom, Outcome, Reason, Room, ServedModel, Status, Timing
from flatout.serving.front.watching import AnsweredRequest, ModelStatistics
from flatout.serving.records import RowLayout, RowOutputs, open_sizes
from flatout.serving.rows_in_rooms import RoomLayout

Array = np.ndarray[Any, Any]


@dataclass
class InProcessRoom:
    model: ServedModel
    inputs: Mapping[str, Array]
    memory: Array
    released: int = 0

    def write(self, *records: bytes) -> None:
        together = b"".join(records)
        self.memory[: len(together)] = np.frombuffer(together, np.uint8)

    def release(self) -> None:
        self.released += 1


@dataclass
class InProcessAsking:
    """`delays_s` are used up in turn; `outcomes` too, instead of running the model."""

    most_rows: int = 100_000
    delays_s: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    rooms: list[InProcessRoom] = field(default_factory=list)
    asked: list[tuple[float, int]] = field(default_factory=list)
    _runtimes: dict[int, EagerRuntime] = field(default_factory=dict)

    def room(self, model: ServedModel, rows: int, sizes: tuple[int, ...] = ()) -> Room:
        if rows > self.most_rows:
            raise NoRoom(f"the shared memory holds {self.most_rows} rows of {model.name}, got {rows}", ever=False)
        layout = RowLayout.of(model.inputs, sizes)
        memory = np.full(rows * layout.row_bytes, 0xAA, np.uint8)
        made = InProcessRoom(model, layout.columns(memory, rows), memory)
        self.rooms.append(made)
        return made

    def file_room(self, model: ServedModel, nbytes: int) -> Room:
        raise AssertionError("no model of these tests takes files")

    def ask(self, room: Room, done: Callable[[Outcome], None], *, deadline_s: float = 0.0, priority: int = 0) -> None:
        assert isinstance(room, InProcessRoom)
        self.asked.append((deadline_s - time.monotonic() if deadline_s else 0.0, priority))
        loop = asyncio.get_running_loop()
        delay_s = self.delays_s.pop(0) if self.delays_s else 0.0
        loop.call_later(delay_s, lambda: done(self._outcome(room)))

    def _outcome(self, room: InProcessRoom) -> Outcome:
        if self.outcomes:
            return self.outcomes.pop(0)
        model = room.model
        if model.number not in self._runtimes:
            self._runtimes[model.number] = EagerRuntime.load(model.package.parts(torch.device("cpu")))
        begun = time.perf_counter()
        rows = {name: torch.from_numpy(np.array(column)) for name, column in room.inputs.items()}
        try:
            made = self._runtimes[model.number].run(rows)
        except Exception as error:
            return Outcome(Status.FAILED, problem=f"{type(error).__name__}: {error}")
        count = len(next(iter(rows.values())))
        timing = Timing(0.001, 0.0001, time.perf_counter() - begun, count, Reason.IDLE)
        if count == 1:
            return Outcome(Status.ANSWERED, as_row(model, rows, made), timing)
        return Outcome(Status.ANSWERED, {name: in_records(column.numpy()) for name, column in made.items()}, timing)


def as_row(model: ServedModel, rows: Mapping[str, torch.Tensor], made: Mapping[str, torch.Tensor]) -> RowOutputs:
    """As the lane gives one row: a copy of its record."""
    layout = RoomLayout.of(model.inputs, model.outputs, open_sizes(model.inputs, rows)).outputs
    memory = np.zeros(layout.row_bytes, np.uint8)
    for name, column in layout.columns(memory, 1).items():
        column[...] = made[name].numpy()
    return RowOutputs(layout, memory.tobytes())


def in_records(column: Array) -> Array:
    """The same values with a gap after each row, as views of shared memory have."""
    wide = np.zeros((len(column), 2, *column.shape[1:]), column.dtype)
    wide[:, 0] = column
    return wide[:, 0]


@dataclass
class Watched:
    requests: list[AnsweredRequest] = field(default_factory=list)

    def answered(self, request: AnsweredRequest) -> None:
        self.requests.append(request)

    def statistics(self, name: str, version: str) -> ModelStatistics:
        own = [one for one in self.requests if one.model is not None and (one.model.name, one.model.version) == (name, version)]
        good = [one for one in own if one.status_code == 200 and one.rows]
        return ModelStatistics(
            requests=len(good),
            failed=len(own) - len(good),
            rows=sum(one.rows for one in good),
            batches_run=len(good),
            total_s=sum(one.spent.total_s for one in good),
            compute_s=sum(one.spent.compute_s for one in good),
        )
