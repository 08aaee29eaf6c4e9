"""The sending processes, as the command sees them: start, give each its share of a job, collect what all recorded."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from types import FrameType, TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flatout.base.errors import MachineError
from flatout.base.exits import exit_words, read_end
from flatout.loadtest.connection_pool import COLUMNS, Dialing
from flatout.loadtest.frames import receive_frame, send_frame
from flatout.loadtest.libraries import http_library

Seconds = npt.NDArray[np.float64]
_LEAD_S = 0.02  # between telling all processes to start, and the start
_END_S = 5.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class LoadJob:
    """One measurement. Open loop: `times_s` are the arrivals in order. Closed loop: `closed` connections, no `times_s`."""

    times_s: Seconds
    seconds: float
    warm_s: float
    closed: int = 0


@dataclass(frozen=True)
class Recorded:
    """Of all processes together. Rows of `records`: scheduled_s, lag_s, latency_s, outcome, by scheduled time."""

    records: Seconds
    asked: int
    ended_s: float
    cpu_shares: tuple[float, ...]
    starved_shares: tuple[float, ...]  # of the time in which a process was ready to run and no core was free
    received_bytes: int
    retried: int
    most_open: int
    has_waited: bool
    was_interrupted: bool
    said: dict[str, float] = field(default_factory=dict)  # means of the server's own numbers


class Crew:
    """Use it with `with`: leaving ends the processes."""

    def __init__(self, processes: int, dialing: Dialing, wires: Sequence[bytes]) -> None:
        for name in ("uvloop", "httptools"):
            http_library(name)  # missing: said here, not by a process
        self._dialing, self._wires = dialing, wires
        self._members = [_Member() for _ in range(processes)]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for member in self._members:
            member.close()

    def run(self, job: LoadJob) -> Recorded:
        """Ctrl-C ends it early, with what was recorded by then; a second one raises KeyboardInterrupt."""
        members = self._members if not job.closed else self._members[: job.closed]
        with _noting_ctrl_c() as interrupts:
            for number, member in enumerate(members):
                self._give(member, job, number, len(members))
            for member in members:
                member.receive()
            start_s = time.monotonic() + _LEAD_S
            for member in members:
                member.send({"start": start_s})
            return _merged(_answers(members, interrupts), bool(interrupts))

    def _give(self, member: _Member, job: LoadJob, number: int, members: int) -> None:
        """Every n-th arrival: together the processes send at exactly the times of the schedule."""
        closed = _share(job.closed, number, members)
        connections = closed or max(1, _share(self._dialing.most_connections, number, members))
        dialing = replace(self._dialing, most_connections=connections)
        head = {
            "job": {"seconds": job.seconds, "warm_s": job.warm_s, "closed": closed},
            "dialing": asdict(dialing),
        }
        times_s = np.ascontiguousarray(job.times_s[number::members])
        first = number % len(self._wires)
        member.send(head, [times_s.tobytes(), *self._wires[first:], *self._wires[:first]])


def _share(total: int, number: int, members: int) -> int:
    return total // members + (number < total % members)


class _Member:
    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "flatout.loadtest.sending_process"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C reaches the command alone
            )

    def send(self, head: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        try:
            send_frame(self._line, head, blobs)
        except ConnectionError:
            raise self._gone() from None

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        try:
            return receive_frame(self._line)
        except (EOFError, ConnectionError):
            raise self._gone() from None

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _gone(self) -> MachineError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        how = exit_words(self._process.poll(), read_end(self._errors.fileno()), _END_S)
        return MachineError(f"a process that sends requests {how}")


def _answers(members: Sequence[_Member], interrupts: Sequence[int]) -> list[tuple[dict[str, Any], list[bytes]]]:
    answers: list[tuple[dict[str, Any], list[bytes]]] = []
    waiting = list(members)
    told = False
    while waiting:
        if interrupts and not told:
            told = True
            for member in waiting:
                member.send({"stop": True})
        ready, _, _ = select.select(waiting, [], [], _LOOK_S)
        for member in ready:
            answers.append(member.receive())
            waiting.remove(member)
    return answers


@contextmanager
def _noting_ctrl_c() -> Iterator[list[int]]:
    """The first Ctrl-C is noted in the list: an exception in the middle of a message would lose all that was recorded."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            signal.default_int_handler(number, frame)
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _merged(answers: Sequence[tuple[dict[str, Any], list[bytes]]], interrupted: bool) -> Recorded:
    results = [head for head, _ in answers]
    records = np.concatenate([np.frombuffer(blobs[0], np.float64).reshape(-1, COLUMNS) for _, blobs in answers])
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for result in results:
        for name, value in result["sums"].items():
            sums[name] = sums.get(name, 0.0) + value
            counts[name] = counts.get(name, 0) + result["counts"][name]
    return Recorded(
        records=records[np.argsort(records[:, 0], kind="stable")],
        asked=sum(result["asked"] for result in results),
        ended_s=max(result["ended_s"] for result in results),
        cpu_shares=tuple(result["cpu_share"] for result in results),
        starved_shares=tuple(result["starved_share"] for result in results),
        received_bytes=sum(result["received_bytes"] for result in results),
        retried=sum(result["retried"] for result in results),
        most_open=sum(result["most_open"] for result in results),
        has_waited=any(result["has_waited"] for result in results),
        was_interrupted=interrupted,
        said={name: sums[name] / counts[name] for name in sums},
    )
