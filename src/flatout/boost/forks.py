"""Trials as fresh processes without the wait: forked off one that has imported torch and done nothing else. That one is a fork
itself, of the command's own process before it computes anything."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from flatout.base.fork_server import PAUSED, ForkServer, ForkServerGone
from flatout.base.keeper import end_with_parent

_START_S, _END_S = 120.0, 30.0


class Forks:
    """`do` is called in each of them, with what was asked for. Made before this process computes anything."""

    def __init__(self, do: Callable[[str, Path], int]) -> None:
        def work(asked: Mapping[str, Any], _: Sequence[int]) -> int:
            _be_fresh(Path(asked["words"]))
            return do(asked["what"], Path(asked["question"]))

        self._server = ForkServer.forked_here(work)
        self._live: set[int] = set()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()

    def run(self, what: str, question: Path, words: Path, limit_s: float) -> int | None:
        """The exit code of a process that does `what`, negative for a signal; None if it did not end in time and was killed.
        What it prints goes to `words`."""
        pid = self.start(what, question, words)
        try:
            return self.wait(pid, limit_s)
        finally:
            self.end(pid)

    def start(self, what: str, question: Path, words: Path) -> int:
        with _while_it_lives():
            asked = {"what": what, "question": str(question), "words": str(words)}
            pid = self._server.start(asked, limit_s=_START_S)
        self._live.add(pid)
        return pid

    def wait(self, pid: int, limit_s: float) -> int | None:
        """Until it has ended or stopped itself: its exit code, PAUSED, or None if neither came in time and it was killed."""
        with _while_it_lives():
            code = self._server.wait(pid, limit_s)
        if code is None:
            self.end(pid)
        elif code != PAUSED:
            self._live.discard(pid)
        return code

    def go_on(self, pid: int) -> None:
        self._server.signal(pid, signal.SIGCONT)

    def end(self, pid: int) -> None:
        """It and the workers that it left behind. What it held, a port say, is free afterwards."""
        self._server.signal(pid, signal.SIGKILL)
        with _while_it_lives():
            while pid in self._live:
                if self._server.wait_for_end(pid, _END_S) is not None:
                    self._live.discard(pid)


@contextmanager
def _while_it_lives() -> Iterator[None]:
    try:
        yield
    except ForkServerGone as gone:
        raise RuntimeError(f"the process that trials are forked off {gone}") from None


def pause() -> None:
    """Of this process and its workers, until it is told to go on."""
    os.killpg(0, signal.SIGSTOP)


def _be_fresh(words: Path) -> None:
    end_with_parent()  # if it is killed, nobody is there to end this one
    nowhere, said = os.open(os.devnull, os.O_RDONLY), os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(nowhere, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
