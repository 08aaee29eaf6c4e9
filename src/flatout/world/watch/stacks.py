"""The stack of the training thread: which line of whose code it is in, and in which collective it waits."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

Kind = Literal["own", "distributed", "torch", "python", "library"]

DEPTH = 200  # nested imports are deep
_TORCH = str(Path(torch.__file__).parent)
_FLATOUT = str(Path(__file__).parents[2])
_LIBRARIES = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
_PYTHON = sysconfig.get_path("stdlib")
_COLLECTIVES = ("distributed_c10d.py", "_functional_collectives.py")
_WAITING_CALL = re.compile(r"\.(wait|synchronize|item|tolist|cpu|block_current_stream)\(")
_DUMPED = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


@dataclass(frozen=True)
class StackFrame:
    file: str
    line: int
    function: str
    text: str  # the source line; "" if it can't be read
    kind: Kind

    @property
    def place(self) -> str:
        """ "data/loader.py:88": two parts of the path identify the file and keep messages short."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}"


@dataclass(frozen=True)
class Stack:
    """Innermost frame first."""

    frames: tuple[StackFrame, ...]

    @property
    def own(self) -> StackFrame | None:
        """The innermost line of the user's or flatout's code; without one, the innermost line."""
        return next((frame for frame in self.frames if frame.kind == "own"), self.frames[0] if self.frames else None)

    @property
    def called(self) -> tuple[StackFrame, ...]:
        """The frames that this line called, innermost first."""
        own = self.own
        return () if own is None else self.frames[: self.frames.index(own)]

    @property
    def waits_in(self) -> str:
        """The collective, or the wait for a device or gradients, that user code is in; "" if it is not waiting.

        A wait inside C++ has no Python frame: then the source line is used.
        """
        called, own = self.called, self.own
        names = [frame.function for frame in called if frame.kind == "distributed" and frame.file.endswith(_COLLECTIVES)]
        public = [name for name in names if not name.startswith("_")]
        if public:
            return public[-1]  # all_gather_object rather than the all_gather inside it
        if called:
            inner = called[0]
            if inner.kind == "distributed":
                return inner.function
            if inner.function == "_engine_run_backward":
                return "backward"  # gradients are exchanged there
            if inner.kind == "torch" and (inner.file.endswith("parallel/distributed.py") or inner.function in _DEVICE_WAITS):
                return inner.function
            return ""
        found = _WAITING_CALL.search(own.text) if own is not None and own.kind == "own" else None
        return found[1] if found else ""

    def to_list(self) -> list[Any]:
        return [[frame.file, frame.line, frame.function, frame.text, frame.kind] for frame in self.frames]

    @classmethod
    def from_list(cls, rows: list[Any]) -> Stack:
        return cls(tuple(StackFrame(*row) for row in rows))


_DEVICE_WAITS = ("synchronize", "wait", "wait_event", "wait_stream")


@cache
def kind_of(file: str) -> Kind:
    if file.startswith(_FLATOUT):  # first: flatout may itself be installed among the libraries
        return "distributed" if file.startswith(f"{_FLATOUT}/machine/world") else "own"
    if file.startswith(f"{_TORCH}/distributed/"):
        return "distributed"
    if file.startswith(f"{_TORCH}/"):
        return "torch"
    if any(file.startswith(f"{folder}/") for folder in _LIBRARIES):
        return "library"
    return "python" if file.startswith((f"{_PYTHON}/", "<frozen")) else "own"


def stack_of(thread: int) -> Stack | None:
    """The current stack of a thread of this process."""
    frame = sys._current_frames().get(thread)
    return None if frame is None else Stack(tuple(_frames(frame)))


def _frames(frame: FrameType | None) -> Iterable[StackFrame]:
    for _ in range(DEPTH):
        if frame is None:
            return
        file, line = frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno
        yield _frame(file, line, frame.f_code.co_name)
        frame = frame.f_back


def _frame(file: str, line: int, function: str) -> StackFrame:
    return StackFrame(file, line, function, linecache.getline(file, line).strip()[:120], kind_of(file))


def parse_dump(text: str, thread: int) -> Stack | None:
    """One thread's stack from `faulthandler`'s output; from the last dump if there are several."""
    found: list[StackFrame] | None = None
    reading = False
    for row in text.splitlines():
        if row.startswith(("Thread 0x", "Current thread 0x")):
            reading = int(row[row.index("0x") :].split()[0].rstrip(":"), 16) == thread
            found = [] if reading else found
        elif reading and found is not None and (match := _DUMPED.match(row)):
            found.append(_frame(match["file"], int(match["line"]), match["function"]))
    return Stack(tuple(found[:DEPTH])) if found else None
