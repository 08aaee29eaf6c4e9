"""Fresh processes without the wait: they are forked off one that has imported torch and done nothing else. That one is a
fork itself, of the command's own process before it computes anything.

It starts no thread and touches no device, so what is forked off it is as good as new.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from flatout.base.questions import Questions

PAUSED = 1000  # no exit code
_PDEATHSIG = 1  # of Linux's prctl.h


class Forks:
    """`do` is called in each of them, with what was asked for. Made before this process computes anything."""

    def __init__(self, do: Callable[[str, Path], int]) -> None:
        self._questions = Questions()
        self._live: set[int] = set()
        self._asked_for: int | None = None  # whose end or stop is still to be told
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or each of them would write it once more
        self._pid = os.fork()
        if not self._pid:
            _serve_from_here(self._questions, do)
        self._questions.hand_over()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for pid in self._live:
            _signal(pid, signal.SIGKILL)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._questions.close()

    def run(self, what: str, question: Path, words: Path, limit_s: float) -> int | None:
        """The exit code of a process that does `what`, negative for a signal; None if it did not end in time and was killed.
        What it prints goes to `words`."""
        pid = self.start(what, question, words)
        try:
            return self.wait(pid, limit_s)
        finally:
            self.end(pid)

    def start(self, what: str, question: Path, words: Path) -> int:
        self._ask({"what": what, "question": str(question), "words": str(words)})
        pid = int(self._answer(120)["pid"])
        self._live.add(pid)
        return pid

    def wait(self, pid: int, limit_s: float) -> int | None:
        """Until it has ended or stopped itself: its exit code, PAUSED, or None if neither came in time and it was killed."""
        self._ask_for_the_end_of(pid)
        try:
            code = int(self._answer(limit_s)["code"])
        except TimeoutError:
            _signal(pid, signal.SIGKILL)
            self._answer(30)
            self._asked_for = None
            self._live.discard(pid)
            return None
        self._asked_for = None
        if code != PAUSED:
            self._live.discard(pid)
        return code

    def _ask_for_the_end_of(self, pid: int) -> None:
        """Once: Ctrl-C may have come while the answer was waited for, and whoever ends the process then waits for it again."""
        if self._asked_for == pid:
            return
        if self._asked_for is not None:
            _signal(self._asked_for, signal.SIGKILL)
            self._answer(30)
            self._live.discard(self._asked_for)
        self._asked_for = pid
        self._ask({"wait": pid})

    def go_on(self, pid: int) -> None:
        _signal(pid, signal.SIGCONT)

    def end(self, pid: int) -> None:
        """It and the workers that it left behind. What it held, a port say, is free afterwards."""
        _signal(pid, signal.SIGKILL)
        while pid in self._live:
            self.wait(pid, 30)

    def _ask(self, question: dict[str, Any]) -> None:
        with _while_it_lives():
            self._questions.ask(question)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        with _while_it_lives():
            return self._questions.answer(limit_s)


@contextmanager
def _while_it_lives() -> Iterator[None]:
    try:
        yield
    except EOFError:
        raise RuntimeError("the process that trials are forked off has ended") from None


def _serve_from_here(questions: Questions, do: Callable[[str, Path], int]) -> NoReturn:
    code = 1
    try:
        os.setsid()  # Ctrl-C is for the person's own process, which ends this one
        questions.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        _serve(questions.asked_from, questions.answered_to, do)
        code = 0
    finally:
        os._exit(code)


def _serve(asked_from: int, answered_to: int, do: Callable[[str, Path], int]) -> None:
    """Fork and wait, until nobody asks any more."""
    live: set[int] = set()
    try:
        with os.fdopen(asked_from) as questions, os.fdopen(answered_to, "w") as answers:
            for line in questions:
                asked = json.loads(line)
                if (pid := asked.get("wait")) is not None:
                    _, status = os.waitpid(pid, os.WUNTRACED)
                    paused = os.WIFSTOPPED(status)
                    told = {"code": PAUSED if paused else os.waitstatus_to_exitcode(status)}
                    live -= set() if paused else {pid}
                else:
                    pid = os.fork()
                    if not pid:
                        os.close(asked_from)
                        os.close(answered_to)
                        _be_fresh(Path(asked["words"]))
                        os._exit(_done(do, asked["what"], Path(asked["question"])))
                    live.add(pid)
                    told = {"pid": pid}
                print(json.dumps(told), file=answers, flush=True)
    finally:
        for pid in live:  # who asked is gone, and what is paused would stay so for ever
            _signal(pid, signal.SIGKILL)


def pause() -> None:
    """Of this process and its workers, until it is told to go on."""
    os.killpg(0, signal.SIGSTOP)


def _done(do: Callable[[str, Path], int], what: str, question: Path) -> int:
    try:
        return do(what, question)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()


def end_with_the_parent() -> None:
    """Who asked may be interrupted in the moment between a fork and its being known to it."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PDEATHSIG, signal.SIGKILL)


def _be_fresh(words: Path) -> None:
    end_with_the_parent()
    os.setsid()
    nowhere, said = os.open(os.devnull, os.O_RDONLY), os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(nowhere, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)


def _signal(pid: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, which)
