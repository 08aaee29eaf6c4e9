"""Fresh processes without the wait: they are forked off one that has imported torch and done nothing else.

It starts no thread and touches no device, so what is forked off it is as good as new. Questions and answers are lines of JSON
on two pipes that nothing else writes to.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

_LOOK_S = 0.2


class Forks:
    """`command` starts the process that calls `serve`; two file descriptors are put at its end."""

    def __init__(self, command: Sequence[str]) -> None:
        asked_from, self._asks = os.pipe()
        self._answers, answered_to = os.pipe()
        self._buffer = b""
        self._process = subprocess.Popen(
            [*command, str(asked_from), str(answered_to)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(asked_from, answered_to),
            start_new_session=True,  # Ctrl-C is for the person's own process, which ends this one
        )
        os.close(asked_from)
        os.close(answered_to)

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        _kill(self._process.pid)
        self._process.wait()
        os.close(self._asks)
        os.close(self._answers)

    def run(self, what: str, question: Path, words: Path, limit_s: float) -> int | None:
        """The exit code of a process that does `what`, negative for a signal; None if it did not end in time and was killed.
        What it prints goes to `words`."""
        ends_s = time.monotonic() + limit_s
        os.write(self._asks, json.dumps({"what": what, "question": str(question), "words": str(words)}).encode() + b"\n")
        pid = int(self._answer(time.monotonic() + 120)["pid"])
        try:
            return int(self._answer(ends_s)["code"])
        except TimeoutError:
            _kill(pid)
            self._answer(time.monotonic() + 30)
            return None
        finally:
            _kill(pid)  # and the workers that it left behind

    def _answer(self, ends_s: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            if time.monotonic() > ends_s:
                raise TimeoutError
            if select.select([self._answers], [], [], _LOOK_S)[0]:
                piece = os.read(self._answers, 1 << 16)
                if not piece:
                    raise RuntimeError("the process that trials are forked off has ended")
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def serve(asked_from: int, answered_to: int, do: Callable[[str, Path], int]) -> None:
    """Fork and wait, until nobody asks any more."""
    with os.fdopen(asked_from) as questions, os.fdopen(answered_to, "w") as answers:
        for line in questions:
            asked = json.loads(line)
            pid = os.fork()
            if not pid:
                os.close(asked_from)
                os.close(answered_to)
                _be_fresh(Path(asked["words"]))
                os._exit(_done(do, asked["what"], Path(asked["question"])))
            print(json.dumps({"pid": pid}), file=answers, flush=True)
            _, status = os.waitpid(pid, 0)
            print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), file=answers, flush=True)


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


def _be_fresh(words: Path) -> None:
    os.setsid()
    nowhere, said = os.open(os.devnull, os.O_RDONLY), os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(nowhere, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
