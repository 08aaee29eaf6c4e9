"""One stage at work: its command in a process of its own, what that uses, and how it ended."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from flatout.base.child import Child
from flatout.base.exits import exit_words, printed_to
from flatout.base.units import parse_seconds
from flatout.pipelines.stages.commands import StageCommand
from flatout.pipelines.stages.resolved import ResolvedStage
from flatout.pipelines.stages.usage import Usage

_SAVE_S = 30.0


class WorkingStage:
    """`ended` is None while it works, then empty, or why it failed. `code`: the exit code of a command that ended by itself."""

    def __init__(self, stage: ResolvedStage, command: StageCommand, home: Path, log: Path) -> None:
        self.stage, self.command, self.log = stage, command, log
        self.ended: str | None = None
        self.code: int | None = None
        self.seconds = 0.0
        self.usage: Usage | None = None
        self._limit_s = parse_seconds(stage.asked.limit)
        self._began_s = time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        for output in stage.outputs:
            output.parent.mkdir(parents=True, exist_ok=True)
        if command.makes is not None and command.printed is not None:
            command.makes.mkdir(parents=True, exist_ok=True)
        elif command.makes is not None:
            command.makes.parent.mkdir(parents=True, exist_ok=True)
        if stage.kind == "data" and command.makes is not None:
            command.makes.mkdir(exist_ok=True)
        with ExitStack() as open_files:
            printed = open_files.enter_context(log.open("wb"))
            answer = printed if command.printed is None else open_files.enter_context(command.printed.open("wb"))
            self._child = Child(command.words, output=answer, errors=printed, folder=home)

    def __enter__(self) -> WorkingStage:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._child.end()

    def look(self, wait_s: float) -> bool:
        """Whether it has ended. Waits at most so long."""
        if self.usage is None:
            try:
                self.usage = Usage(self._child.pid)
            except EOFError:
                self.usage = Usage(0)
        self.usage.look()
        code = self._child.wait(wait_s)
        self.seconds = time.monotonic() - self._began_s
        if code is None:
            if self.seconds > self._limit_s:
                self._child.end()
                self.ended = f"did not end within {self.stage.asked.limit}, and was stopped (its `limit`)"
            return self.ended is not None
        self.code = code
        self.ended = "" if code in self.command.codes else exit_words(code, printed_to(self.log))
        return True

    def save_and_end(self) -> None:
        """Called when the pipeline is to end: a training saves where it is, so that the same command goes on from there."""
        if self.command.saves_when_asked:
            self._child.signal(signal.SIGTERM)
            self._child.wait(_SAVE_S)
        self._child.end()
