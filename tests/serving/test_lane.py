"""The lane of a front, with the executor's end of the stream in the test's own hands."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flatout.base.errors import ModelError
from flatout.packaging.ports import Port
from flatout.serving.arena import Arena
from flatout.serving.asking import Outcome, Status
from flatout.serving.control import ControlLine
from flatout.serving.gathering import AttachedArena
from flatout.serving.lane import FrontLane
from flatout.serving.records import RowLayout
from flatout.serving.rows_in_rooms import RoomLayout, check_open_dimensions
from flatout.serving.wire import ANSWER, QUESTION, DescriptorLine

SMALLEST_BUFFER = 4096


@dataclass(frozen=True)
class Model:
    """What a lane needs of a ServedModel."""

    number: int = 0
    inputs: tuple[Port, ...] = (Port("x", "float32", (None, 3)), Port("kind", "int64", (None,)))
    outputs: tuple[Port, ...] = (Port("y", "float32", (None, 3)),)


def stream_with_little_room() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALLEST_BUFFER)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALLEST_BUFFER)
    return ours, theirs


def test_records_written_in_one_piece_are_the_inputs() -> None:
    """Where tensors lie one after the other as records do: one row without a gap between fields, many rows of one field."""
    ports = {
        "a gap": (Port("x", "float32", (None, 3)), Port("kind", "int64", (None,))),
        "none": (Port("x", "float32", (None, 4)), Port("kind", "int64", (None,))),
        "one": (Port("x", "float32", (None, 4)),),
        "one with a gap": (Port("x", "float32", (None, 3)),),
    }
    packed = {name: [RowLayout.of(some).is_packed(rows) for rows in (1, 2)] for name, some in ports.items()}
    assert packed == {"a gap": [False] * 2, "none": [True, False], "one": [True] * 2, "one with a gap": [True, False]}

    async def main() -> None:
        lane: Any = FrontLane(asyncio.get_running_loop(), Arena(1 << 20))
        given = np.arange(8, dtype=np.float32).reshape(2, 4)
        room = lane.room(Model(inputs=ports["one"]), 2)
        room.write(given.tobytes())
        assert np.array_equal(room.inputs["x"], given)
        lane.close()

    asyncio.run(main())


def test_a_stream_that_is_full_loses_and_repeats_nothing() -> None:
    """Thousands of questions into a small stream, whose reader starts late and answers in odd pieces."""
    requests = 3000

    async def main() -> None:
        loop = asyncio.get_running_loop()
        lane: Any = FrontLane(loop, Arena(4 << 20))
        ours, theirs = stream_with_little_room()
        lane.attach("executor", ours, [0])
        answers: dict[int, float] = {}
        ended = asyncio.Event()

        def ask(number: int) -> None:
            room = lane.room(Model(), 1)
            room.inputs["x"][:] = number
            room.inputs["kind"][:] = 1

            def done(outcome: Outcome) -> None:
                assert number not in answers
                answers[number] = float(outcome.outputs["y"][0, 2])
                room.release()
                if len(answers) == requests:
                    ended.set()

            lane.ask(room, done)

        for number in range(requests):
            ask(number)
        await asyncio.sleep(0.01)
        assert lane.outstanding == requests and not answers
        memory = AttachedArena(os.dup(lane.descriptor)).memory
        line, left = DescriptorLine(theirs, QUESTION), b""
        layout = RoomLayout.of(Model().inputs, Model().outputs, ())
        while not ended.is_set():
            for number, offset, *_ in QUESTION.iter_unpack(line.read() or b""):
                given = layout.input_views(memory, offset, 1)
                layout.output_views(memory, offset, 1)["y"][:] = 2 * given["x"]
                left += ANSWER.pack(number, 0, 1, 0, 1, 0.0, 0.0, 0.0, 0.0, 0)
            with suppress(BlockingIOError):
                left = left[theirs.send(left[:1111]) :] if left else left  # no multiple of a descriptor
            await asyncio.sleep(0)
        assert answers == {number: 2.0 * number for number in range(requests)}
        assert lane.arena.free_bytes == 4 << 20 and lane.outstanding == 0
        lane.close()
        theirs.close()

    asyncio.run(main())


def test_requests_of_a_process_that_ended_twice_are_gone_and_the_rest_is_asked_once_more() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        lane: Any = FrontLane(loop, Arena(1 << 20))
        outcomes: list[Status] = []
        seen: list[list[int]] = []
        ids = []
        for turn in range(3):
            ours, theirs = socket.socketpair()
            lane.attach("executor", ours, [0])
            if turn < 2:
                room = lane.room(Model(), 1)
                lane.ask(room, lambda outcome, room=room: (outcomes.append(outcome.status), room.release()))
                ids.append(room.id)
            await asyncio.sleep(0.01)
            line = DescriptorLine(theirs, QUESTION)
            seen.append([question[0] for question in QUESTION.iter_unpack(line.read() or b"")])
            if turn == 2:
                line.write(ANSWER.pack(ids[1], 0, 1, 0, 1, 0.0, 0.0, 0.0, 0.0, 0))
                await asyncio.sleep(0.01)
            theirs.close()
            await asyncio.sleep(0.01)
        assert seen == [[ids[0]], ids, [ids[1]]]
        assert outcomes == [Status.GONE, Status.ANSWERED]
        assert lane.arena.free_bytes == 1 << 20
        lane.close()

    asyncio.run(main())


def test_open_sizes_of_outputs_are_those_of_the_inputs() -> None:
    inputs, outputs = (
        [Port("x", "int64", (None, None))],
        [Port("a", "int64", (None, None)), Port("b", "float32", (None, None, 4))],
    )
    layout = RoomLayout.of(inputs, outputs, (7,))
    assert [field.shape for field in layout.outputs.fields] == [(7,), (7, 4)]
    with pytest.raises(ModelError, match="expected 1 sizes"):
        RoomLayout.of(inputs, outputs, ())
    with pytest.raises(ModelError, match="can't be known before it runs"):
        check_open_dimensions("mine", [Port("x", "float32", (None, 3))], outputs)
    with pytest.raises(ModelError, match="5 open dimensions"):
        check_open_dimensions("mine", [Port("x", "float32", (None,) * 6)], outputs)


def test_control_messages_carry_descriptors_in_order() -> None:
    ours, theirs = socket.socketpair()
    here, there = ControlLine(ours), ControlLine(theirs)
    files = [os.memfd_create(str(number)) for number in range(6)]
    for number, file in enumerate(files):
        os.write(file, str(number).encode())
    here.send({"do": "plain"})
    here.send({"do": "attach", "front": "a"}, files[:2])
    here.send({"do": "long", "text": "x" * 500_000}, files[2:3])
    here.send({"do": "attach", "front": "b"}, files[3:])
    messages = []
    while len(messages) < 4:
        messages += there.receive() or []
        here.flush()
    assert [message.content["do"] for message in messages] == ["plain", "attach", "long", "attach"]
    came = [descriptor for message in messages for descriptor in message.descriptors]
    assert [os.pread(descriptor, 1, 0) for descriptor in came] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    here.close()
    assert there.receive() is None
    there.close()
    for descriptor in [*files, *came]:
        os.close(descriptor)


def test_a_problem_in_one_answer_does_not_keep_others_from_theirs() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        lane: Any = FrontLane(loop, Arena(1 << 20))
        ours, theirs = socket.socketpair()
        lane.attach("executor", ours, [0])
        problems: list[Any] = []
        loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))
        told = []
        for fails in (True, False):
            room = lane.room(Model(), 1)
            lane.ask(room, lambda outcome, fails=fails: 1 / 0 if fails else told.append(outcome))
            theirs.send(ANSWER.pack(room.id, int(Status.LATE), 0, 0, 0, 0.0, 0.0, 0.0, 2.5, 0))
        await asyncio.sleep(0.01)
        assert [type(problem) for problem in problems] == [ZeroDivisionError]
        assert told[0].status is Status.LATE and told[0].retry_after_s == 2.5
        lane.close()
        theirs.close()

    asyncio.run(main())


def test_several_executors_get_their_share_and_take_over_from_one_that_ended() -> None:
    async def main() -> None:
        lane: Any = FrontLane(asyncio.get_running_loop(), Arena(1 << 20))
        ends = []
        for name in ("one", "other"):
            ours, theirs = socket.socketpair()
            lane.attach(name, ours, [0])
            ends.append(DescriptorLine(theirs, QUESTION))
        rooms = [lane.room(Model(), 1) for _ in range(4)]
        for room in rooms:
            lane.ask(room, lambda outcome: None)
        await asyncio.sleep(0.01)
        asked = [{question[0] for question in QUESTION.iter_unpack(end.read() or b"")} for end in ends]
        assert [len(some) for some in asked] == [2, 2] and set.union(*asked) == {room.id for room in rooms}
        ends[0].close()
        await asyncio.sleep(0.01)
        assert {question[0] for question in QUESTION.iter_unpack(ends[1].read() or b"")} == asked[0]
        lane.retire("one")
        lane.retire("other")
        assert lane.outstanding == 4  # they are still answered
        ends[1].close()
        lane.close()

    asyncio.run(main())
