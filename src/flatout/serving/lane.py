"""The way of a front to the executors: it allocates room in its shared memory, asks, and hears the outcomes.

lane = FrontLane(loop, Arena(256 << 20))
lane.attach("cuda:0", stream, [0, 1])          # the executor has lane.descriptor and the other end of the stream
room = lane.room(model, rows=1)
room.inputs["x"][:] = row
lane.ask(room, done)                           # done(outcome) in the event loop
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from flatout.serving.arena import Arena
from flatout.serving.asking import Asking, Outcome, Reason, Room, ServedModel, Status, Timing
from flatout.serving.photo_files import FILES, file_layout
from flatout.serving.records import RowOutputs
from flatout.serving.rows_in_rooms import RoomLayout
from flatout.serving.wire import ANSWER, NO_SIZES, QUESTION, QUESTION_WITHOUT_SIZES, DescriptorLine

Array = np.ndarray[Any, Any]
Done = Callable[[Outcome], None]

_ANSWERED = Status.ANSWERED  # an enum's member is slow to look up
_STATUSES = tuple(Status)
_REASONS = tuple(Reason)
_PATIENCE_S = 30.0
_MOST_TRIES = 2
_MOST_SHAPES = 1024  # whose layouts are kept
_made: Any = tuple.__new__  # a third of the time of a NamedTuple's own
_SMALL_ANSWER = 4096  # bytes: a copy is cheaper than arrays
_MOST_TURNS, _MANY_QUESTIONS = 3, 8  # of the event loop, and in one write: how long questions to a busy executor are gathered


class ArenaRoom(Room):
    """A block of the front's shared memory."""

    # most requests never change these
    _inputs: dict[str, Array] | None = None
    asked = released = False
    id = tries = written_from = 0
    question = b""
    until_s = 0.0
    done: Done | None = None

    def __init__(self, lane: FrontLane, layout: RoomLayout, model: int, rows: int, offset: int, power: int) -> None:
        self.lane = lane
        self.layout = layout
        self.model = model
        self.rows = rows
        self.offset = offset
        self.power = power

    @property
    def inputs(self) -> Mapping[str, Array]:
        if self._inputs is None:
            self._inputs = self.layout.input_views(self.lane.memory, self.offset, self.rows)
        return self._inputs

    def write(self, *records: bytes) -> None:
        at, raw = self.offset + self.written_from, self.lane.raw
        for part in records:
            end = at + len(part)
            raw[at:end] = part
            at = end

    def outputs(self) -> Mapping[str, Array]:
        layout = self.layout
        if self.rows == 1 and layout.outputs.row_bytes <= _SMALL_ANSWER:
            begin = self.offset + layout.inputs.row_bytes
            return RowOutputs(layout.outputs, self.lane.raw[begin : begin + layout.outputs.row_bytes])
        return layout.output_views(self.lane.memory, self.offset, self.rows)

    def release(self) -> None:
        """Before its outcome this cancels the question: `done` is not called. The executor may still write, so the block
        is only free when it has answered."""
        if self.released:
            return
        self.released = True
        if not self.asked:
            self.lane.arena.free(self.offset, self.power)


class _Connection:
    """The line to one process of an executor. `models` are those that it runs; requests under way by their id."""

    def __init__(self, name: str, stream: socket.socket, models: Iterable[int]) -> None:
        self.name, self.models = name, tuple(models)
        self.line = DescriptorLine(stream, ANSWER)
        self.rooms: dict[int, ArenaRoom] = {}
        self.questions: list[bytes] = []  # of this turn of the event loop
        self.is_watched = False  # for room to write


class FrontLane(Asking):
    """All executors that this front can ask. One event loop; one allocator of its shared memory.

    A connection that ends leaves its requests waiting for `attach` with the same name, up to `patience_s`; they are asked
    once more. The old process of an executor must have ended before its replacement is attached: it could still write.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, arena: Arena, *, patience_s: float = _PATIENCE_S) -> None:
        self.arena, self.memory = arena, arena.shared.memory
        self.raw = arena.shared.raw
        self._loop, self._patience_s = loop, patience_s
        self._connections: dict[str, _Connection] = {}  # those that take new requests, by the executor's name
        self._retired: list[_Connection] = []
        self._executors: dict[int, tuple[str, ...]] = {}  # by the model's number
        self._orphans: list[ArenaRoom] = []  # asked, and no executor has them
        self._layouts: dict[tuple[int, tuple[int, ...]], RoomLayout] = {}
        self._shapes: dict[tuple[int, tuple[int, ...], int], tuple[RoomLayout, int]] = {}  # by rows too: and the block's power
        self._unsent: list[_Connection] = []  # those with questions that wait for `_flush`
        self._gathered = self._turns = 0  # questions at the last look, and how many turns they have waited
        self._last_id = 0
        self._patrol: asyncio.TimerHandle | None = None

    # ---- executors ----

    @property
    def descriptor(self) -> int:
        """Of the shared memory, for executors."""
        return self.arena.shared.descriptor

    @property
    def outstanding(self) -> int:
        """Requests without an outcome."""
        connections = [*self._connections.values(), *self._retired]
        return sum(len(connection.rooms) for connection in connections) + len(self._orphans)

    def attach(self, executor: str, stream: socket.socket, models: Iterable[int]) -> None:
        """A new executor, or a new process of one that ended. It gets its share of the requests for these models."""
        before = self._connections.pop(executor, None)
        if before is not None:
            self._ended(before)
        connection = _Connection(executor, stream, models)
        self._connections[executor] = connection
        for number in connection.models:
            self._executors[number] = tuple(dict.fromkeys((*self._executors.get(number, ()), executor)))
        self._loop.add_reader(stream.fileno(), self._heard, connection)
        self._adopt()

    def retire(self, executor: str) -> None:
        """It gets no new requests; its connection is closed when those under way are answered. Models that no other executor
        runs are no longer routed."""
        connection = self._connections.pop(executor, None)
        if connection is not None:
            self._write(connection)
        left = {number: tuple(name for name in names if name != executor) for number, names in self._executors.items()}
        self._executors = {number: names for number, names in left.items() if names}
        self._layouts = {key: layout for key, layout in self._layouts.items() if key[0] in self._executors}
        self._shapes.clear()
        if connection is None:  # it ended, and no other takes its place
            self._adopt()
            return
        self._retired.append(connection)
        self._close_if_empty(connection)

    def has_left(self, executor: str) -> bool:
        """Whether it is no longer connected: all that it was asked is answered."""
        return executor not in self._connections and all(one.name != executor for one in self._retired)

    def close(self) -> None:
        """Requests that are under way get the outcome GONE."""
        for connection in [*self._connections.values(), *self._retired]:
            self._forget(connection)
            self._orphans.extend(connection.rooms.values())
        self._connections, self._retired = {}, []
        for room in self._orphans:
            self._gone(room)
        self._orphans = []
        if self._patrol is not None:
            self._patrol.cancel()
        self.arena.close()

    # ---- asking ----

    def room(self, model: ServedModel, rows: int, sizes: tuple[int, ...] = ()) -> ArenaRoom:
        number = model.number
        layout, power = self._shapes.get((number, sizes, rows)) or self._shape(model, sizes, rows)
        return ArenaRoom(self, layout, number, rows, self.arena.allocate(power), power)

    def _shape(self, model: ServedModel, sizes: tuple[int, ...], rows: int) -> tuple[RoomLayout, int]:
        key = (model.number, sizes)
        layout = self._layouts.get(key)
        if layout is None:
            layout = RoomLayout.of(model.inputs, model.outputs, sizes)
            if len(self._layouts) >= _MOST_SHAPES:
                self._layouts.clear()
            self._layouts[key] = layout
        found = layout, self.arena.power_for(layout.nbytes(rows))
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        self._shapes[(*key, rows)] = found
        return found

    def file_room(self, model: ServedModel, nbytes: int) -> ArenaRoom:
        key = (model.number, FILES)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = file_layout(model.outputs)
        begin = layout.outputs.row_bytes
        power = self.arena.power_for(begin + nbytes)
        room = ArenaRoom(self, layout, model.number, 1, self.arena.allocate(power), power)
        room.written_from = begin
        return room

    def ask(self, room: Room, done: Done, *, deadline_s: float = 0.0, priority: int = 0) -> None:
        assert isinstance(room, ArenaRoom)
        self._last_id = number = self._last_id + 1
        sizes = room.layout.sizes
        room.id = number
        room.done = done
        room.asked = True
        if sizes:
            room.question = QUESTION.pack(
                number, room.offset, deadline_s, time.monotonic(), room.rows, room.model, priority, room.power, len(sizes),
                *sizes, *NO_SIZES[len(sizes):],
            )  # fmt: skip
        else:
            room.question = QUESTION_WITHOUT_SIZES.pack(
                number, room.offset, deadline_s, time.monotonic(), room.rows, room.model, priority, room.power, 0
            )
        self._dispatch(room)

    def _dispatch(self, room: ArenaRoom) -> None:
        executors = self._executors.get(room.model)
        if executors is not None and len(executors) == 1:
            connection = self._connections.get(executors[0])
        else:
            connection = None if executors is None else self._least_busy(executors)
        if executors is None and room.tries:  # the model is no longer served
            self._gone(room)
            return
        if connection is None:
            room.until_s = room.until_s or time.monotonic() + self._patience_s
            self._orphans.append(room)
            self._watch_orphans()
            return
        room.tries += 1
        connection.rooms[room.id] = room
        if not connection.questions:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(connection)
        connection.questions.append(room.question)

    def _least_busy(self, executors: tuple[str, ...]) -> _Connection | None:
        """None if all of them have ended."""
        there = [self._connections[name] for name in executors if name in self._connections]
        return min(there, key=lambda one: len(one.rooms), default=None)

    def _flush(self) -> None:
        """All questions of one turn of the event loop in one write. While an executor works on others it would not look at
        them anyway: then those of a few turns go together, since a write costs as much as half a request."""
        unsent = self._unsent
        if self._turns < _MOST_TURNS and len(unsent) == 1:
            gathered = len(unsent[0].questions)
            if self._gathered < gathered < _MANY_QUESTIONS and len(unsent[0].rooms) > gathered:
                self._gathered, self._turns = gathered, self._turns + 1
                self._loop.call_soon(self._flush)
                return
        self._flush_now()

    def _flush_now(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._gathered = self._turns = 0
        for connection in unsent:
            self._write(connection)

    def _write(self, connection: _Connection) -> None:
        if connection.line.fileno() < 0:  # it ended, and its requests were taken from it
            return
        questions, connection.questions = connection.questions, []
        try:
            connection.line.write(b"".join(questions))
        except OSError:
            self._ended(connection)
            return
        if connection.line.is_behind != connection.is_watched:
            connection.is_watched = connection.line.is_behind
            if connection.is_watched:
                self._loop.add_writer(connection.line.fileno(), self._write, connection)
            else:
                self._loop.remove_writer(connection.line.fileno())

    # ---- outcomes ----

    def _heard(self, connection: _Connection) -> None:
        answers = connection.line.read()
        if answers is None:
            self._ended(connection)
            return
        if self._unsent:  # the executor may be idle now
            self._flush_now()
        take = connection.rooms.pop
        for number, status, reason, _, batch_rows, queue_s, copy_s, compute_s, retry_s, text in ANSWER.iter_unpack(answers):
            room = take(number, None)
            if room is None:
                continue
            room.asked = False
            if room.released:
                self.arena.free(room.offset, room.power)
                continue
            timing = _made(Timing, (queue_s, copy_s, compute_s, batch_rows, _REASONS[reason]))
            if status == 0:
                outcome = _made(Outcome, (_ANSWERED, room.outputs(), timing, "", 0.0))
            else:
                problem = bytes(self.memory[room.offset : room.offset + text]).decode(errors="replace") if text else ""
                outcome = Outcome(_STATUSES[status], {}, timing, problem, retry_s)
            self._tell(room, outcome)
        if self._retired:
            self._close_if_empty(connection)

    def _tell(self, room: ArenaRoom, outcome: Outcome) -> None:
        done, room.done = room.done, None
        if done is None:
            return
        try:
            done(outcome)
        except Exception as error:  # one request's answer must not keep others from theirs
            self._loop.call_exception_handler({"message": "a request's answer could not be handled", "exception": error})

    # ---- executors that end ----

    def _forget(self, connection: _Connection) -> None:
        self._loop.remove_reader(connection.line.fileno())
        self._loop.remove_writer(connection.line.fileno())
        connection.line.close()

    def _close_if_empty(self, connection: _Connection) -> None:
        if not connection.rooms and connection in self._retired:
            self._retired.remove(connection)
            self._forget(connection)

    def _ended(self, connection: _Connection) -> None:
        if connection.line.fileno() < 0:
            return
        self._forget(connection)
        if self._connections.get(connection.name) is connection:
            del self._connections[connection.name]
        elif connection in self._retired:
            self._retired.remove(connection)
        rooms, connection.rooms = connection.rooms, {}
        for room in rooms.values():
            if room.tries >= _MOST_TRIES or room.released:
                self._gone(room)
            else:
                self._dispatch(room)

    def _adopt(self) -> None:
        orphans, self._orphans = self._orphans, []
        for room in orphans:
            if room.released:
                self._gone(room)
            else:
                self._dispatch(room)

    def _watch_orphans(self) -> None:
        if self._patrol is None:
            self._patrol = self._loop.call_later(min(1.0, self._patience_s / 4), self._give_up)

    def _give_up(self) -> None:
        self._patrol = None
        now_s = time.monotonic()
        orphans, self._orphans = self._orphans, []
        for room in orphans:
            if room.until_s <= now_s or room.released:
                self._gone(room)
            else:
                self._orphans.append(room)
        if self._orphans:
            self._watch_orphans()

    def _gone(self, room: ArenaRoom) -> None:
        room.asked = False
        if room.released:
            self.arena.free(room.offset, room.power)
            return
        problem = "the executor ended before it answered" if room.tries else "no executor runs this model now"
        self._tell(room, Outcome(Status.GONE, problem=problem, retry_after_s=1.0))
