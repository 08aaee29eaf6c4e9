"""How a front asks an executor: room for rows in shared memory, the question, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from flatout.base.errors import MachineError
from flatout.packaging.package import Package
from flatout.packaging.ports import Port

Array = np.ndarray[Any, Any]

_NO_OUTPUTS: Mapping[str, Array] = MappingProxyType({})


class NoRoom(MachineError):
    """The shared memory can't hold a request. `ever` is whether it can when other requests have been answered."""

    def __init__(self, problem: str, ever: bool) -> None:
        super().__init__(problem)
        self.ever = ever


class Reason(IntEnum):
    """Why a batch was sent when it was."""

    NONE = 0  # it was not sent
    FULL = 1  # more rows would not have fitted, or would not have made it faster
    DEADLINE = 2  # a request in it could not wait longer
    IDLE = 3  # the device was free, and waiting gains nothing
    SHAPE = 4  # the next request has rows of another shape


class Status(IntEnum):
    ANSWERED = 0
    LATE = 1  # refused: it could not be answered before its deadline
    FAILED = 2  # the model raised an error, in `problem`
    GONE = 3  # the executor ended before it answered, twice


class Timing(NamedTuple):
    """Of one request at the executor. `batch_rows` counts all rows of its batch."""

    queue_s: float = 0.0
    copy_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0
    reason: Reason = Reason.NONE


class Outcome(NamedTuple):
    """`outputs` are views of shared memory, valid until the room is released."""

    status: Status
    outputs: Mapping[str, Array] = _NO_OUTPUTS
    timing: Timing = Timing()
    problem: str = ""
    retry_after_s: float = 0.0


@dataclass(frozen=True)
class ServedModel:
    """One version of a model. `number` names it on the way to the executor; `goal_s` is 0 without a latency goal. With
    `takes_files` its executor decodes photos."""

    name: str
    version: str
    number: int
    package: Package
    goal_s: float = 0.0
    takes_files: bool = False

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self.package.program.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.package.program.outputs


class Room(Protocol):
    """Memory for the rows of one request: write `inputs` or all of their records, ask, read the outcome, release it once."""

    @property
    def inputs(self) -> Mapping[str, Array]: ...

    def write(self, *records: bytes) -> None:
        """All inputs at once, as the bytes of their records; see `RowLayout.is_packed`."""
        ...

    def release(self) -> None: ...


class Asking(Protocol):
    """What a front needs of the executors."""

    def room(self, model: ServedModel, rows: int, sizes: tuple[int, ...] = ()) -> Room:
        """NoRoom if the shared memory can't hold the rows now, or never can."""
        ...

    def file_room(self, model: ServedModel, nbytes: int) -> Room:
        """For a photo as a file: `write` takes its head and its bytes, `nbytes` in all; see `photo_files`."""
        ...

    def ask(self, room: Room, done: Callable[[Outcome], None], *, deadline_s: float = 0.0, priority: int = 0) -> None:
        """`done` is called once, in the event loop. `deadline_s` is on time.monotonic's clock; 0 is the model's own goal.
        Requests of a lower `priority` number go first."""
        ...
