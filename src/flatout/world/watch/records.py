"""The record that a rank publishes at every heartbeat, and what a reader remembers about it.

Clocks of hosts differ. Ages are measured on the reader's clock, from when it saw a record change; seconds inside a record are
differences on the writer's clock.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from flatout.world.watch.process import ProcessIdentity
from flatout.world.watch.pulse import Pulse


@dataclass(frozen=True)
class Record:
    rank: int
    process: ProcessIdentity
    serial: int  # number of this heartbeat
    step: int
    phase: str
    phase_s: float  # seconds in this phase so far
    step_s: float  # seconds in this step so far
    count: int  # number of marks; with `step` it shows whether the loop moves
    at_step: tuple[int, float, dict[str, float]]  # step, writer's clock and seconds by phase when the step began
    thread: int
    dump_file: int | None
    alike: str = ""  # only ranks with the same value do the same work and are compared
    ended: bool = False  # the rank said goodbye
    time: float = field(default_factory=time.time)  # for people; never compared

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        fields: dict[str, Any] = json.loads(data)
        step, clock_s, spent_s = fields.pop("at_step")
        return cls(**{**fields, "process": ProcessIdentity(**fields["process"]), "at_step": (step, clock_s, spent_s)})


def record_of(
    pulse: Pulse, rank: int, process: ProcessIdentity, serial: int, dump_file: int | None, alike: str, ended: bool = False
) -> Record:
    now_s = time.monotonic()
    return Record(
        rank=rank,
        process=process,
        serial=serial,
        step=pulse.step,
        phase=pulse.phase,
        phase_s=round(now_s - pulse.phase_began_s, 3),
        step_s=round(now_s - pulse.step_began_s, 3),
        count=pulse.count,
        at_step=pulse.at_step,
        thread=pulse.thread,
        dump_file=dump_file,
        alike=alike,
        ended=ended,
    )


@dataclass
class RankSeen:
    """What one reader has seen of a rank."""

    record: Record
    heard_s: float  # when the record last changed, on the reader's clock
    moved_s: float  # when the rank's loop last moved

    @classmethod
    def first(cls, record: Record, now_s: float) -> RankSeen:
        return cls(record, now_s, now_s - record.phase_s)

    def see(self, record: Record, now_s: float) -> None:
        if record.serial == self.record.serial and record.process == self.record.process:
            return
        if (record.step, record.count) != (self.record.step, self.record.count):
            self.moved_s = now_s - record.phase_s
        self.record, self.heard_s = record, now_s

    def silent_for(self, now_s: float) -> float:
        return now_s - self.heard_s

    def in_phase_s(self, now_s: float) -> float:
        return self.record.phase_s + self.silent_for(now_s)
