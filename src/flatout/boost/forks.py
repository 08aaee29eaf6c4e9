"""Starts trials as fresh processes without the time to import torch: they are forked from a server that has imported torch and
done nothing else. The server is forked from the command's process before that computes anything."""

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
from flatout.boost.terminal import take_terminal

_START_S, _END_S = 120.0, 30.0


class Forks:
    """Each forked process calls `do`. Create this before the process computes anything."""

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
        """Runs `what` in a process and returns its exit code: negative for a signal, None if it was killed at the time limit.
        Its output goes to the file `words`."""
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
        """Waits until the process ends or pauses. Its exit code, PAUSED, or None if it was killed at the time limit."""
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
        """Kills the process and its workers, and waits until their resources (a port, for example) are free."""
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
        raise RuntimeError(f"the process that starts trials {gone}") from None


def pause() -> None:
    """Pauses this process and its workers until SIGCONT."""
    os.killpg(0, signal.SIGSTOP)


def _be_fresh(words: Path) -> None:
    end_with_parent()  # otherwise this process would outlive a killed server
    take_terminal()
    said = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
