"""Ask all ranks where they are, and answer. A question is one key in the store, an answer another.

A process on the same host as a silent rank also answers for that rank: its process state, and the stack dump it wrote, if any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flatout.world.watch.dumps import read_dump
from flatout.world.watch.process import ProcessIdentity, State, state_of
from flatout.world.watch.records import Record
from flatout.world.watch.stacks import Stack, stack_of


@dataclass(frozen=True)
class Question:
    name: str  # unique for every question
    silent: tuple[Record, ...]

    def to_dict(self) -> dict[str, Any]:
        whom = [
            {"rank": record.rank, "process": asdict(record.process), "file": record.dump_file, "thread": record.thread}
            for record in self.silent
        ]
        return {"name": self.name, "silent": whom}


@dataclass(frozen=True)
class Neighbour:
    """What a process knows about another process on its host."""

    state: State
    stack: Stack | None


@dataclass(frozen=True)
class Answer:
    name: str
    rank: int
    step: int
    phase: str
    phase_s: float
    stack: Stack | None
    neighbours: Mapping[int, Neighbour] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        neighbours = {
            rank: [known.state, known.stack.to_list() if known.stack else None] for rank, known in self.neighbours.items()
        }
        stack = self.stack.to_list() if self.stack else None
        return json.dumps(
            [self.name, self.rank, self.step, self.phase, self.phase_s, stack, neighbours]
        ).encode()  # fmt: skip

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        name, rank, step, phase, phase_s, stack, neighbours = json.loads(data)
        known = {int(other): Neighbour(state, _stack(rows)) for other, (state, rows) in neighbours.items()}
        return cls(name, rank, step, phase, phase_s, _stack(stack), known)


def _stack(rows: list[Any] | None) -> Stack | None:
    return Stack.from_list(rows) if rows else None


def answer(question: Mapping[str, Any], mine: Record) -> Answer:
    """Answer a question for the rank whose current record is `mine`."""
    neighbours = {}
    for asked in question["silent"]:
        process = ProcessIdentity(**asked["process"])
        if asked["rank"] != mine.rank and process.place == mine.process.place:
            stack = read_dump(process, asked["file"], asked["thread"])
            neighbours[asked["rank"]] = Neighbour(state_of(process, mine.process), stack)
    stack = stack_of(mine.thread)
    return Answer(question["name"], mine.rank, mine.step, mine.phase, mine.phase_s, stack, neighbours)
