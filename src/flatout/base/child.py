"""One supervised child: a command whose processes all end when it does, when it is ended, or when this process is gone.

Between the two stands a keeper (see `keeper`), which is there for as long as the child is. What the child prints can be kept in
a file that has no name, so that nothing is left behind however this process ends.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import Enum
from types import TracebackType
from typing import IO

from flatout.base import keeper
from flatout.base.exits import exit_words, read_end
from flatout.base.messages import Messages

_END_S = 30.0


class Printed(Enum):
    """What becomes of what a child prints."""

    KEPT = "kept"  # for `printed` and `how_it_ended`
    SHOWN = "shown"  # where this process prints
    DROPPED = "dropped"


class Child:
    """`given` is its stdin. `passed` descriptors are its own: whoever starts it closes theirs.

    In the foreground it shares the terminal, Ctrl-C and stdin with this process, and what it leaves running on purpose stays.
    Else it has a session of its own: Ctrl-C is for this process, which ends it in its own time.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        given: str = "",
        output: Printed = Printed.KEPT,
        errors: Printed = Printed.KEPT,
        passed: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        foreground: bool = False,
    ) -> None:
        self._pid: int | None = None
        self._code: int | None = None
        self._limit_s = 0.0
        self._printed = ""
        self._waiting = threading.Lock()
        self._file: IO[bytes] | None = tempfile.TemporaryFile() if Printed.KEPT in (output, errors) else None  # noqa: SIM115
        self._line, theirs = socket.socketpair()
        self._messages = Messages(self._line.fileno())
        with theirs, ExitStack() as until_started:
            stdin: IO[bytes] | int | None = None if foreground else subprocess.DEVNULL
            if given:
                stdin = until_started.enter_context(tempfile.TemporaryFile())
                stdin.write(given.encode())
                stdin.seek(0)
            how = [str(theirs.fileno()), keeper.FOREGROUND if foreground else keeper.BACKGROUND, ",".join(map(str, passed))]
            self._keeper = subprocess.Popen(
                [sys.executable, "-S", "-P", keeper.__file__, *how, *command],
                stdin=stdin,
                stdout=self._target(output),
                stderr=self._target(errors),
                pass_fds=(theirs.fileno(), *passed),
                env=environment,
                start_new_session=not foreground,
            )

    def _target(self, printed: Printed) -> IO[bytes] | int | None:
        return {Printed.KEPT: self._file, Printed.SHOWN: None, Printed.DROPPED: subprocess.DEVNULL}[printed]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Of the command. Waits until it is started, some milliseconds. EOFError: its keeper was killed before that."""
        with self._waiting:
            while self._pid is None:
                self._note(None)
            return self._pid

    def wait(self, limit_s: float | None = None) -> int | None:
        """Its exit code, negative for a signal; None: it has not ended in time."""
        self._limit_s = limit_s or 0.0
        ends_s = None if limit_s is None else time.monotonic() + limit_s
        with self._waiting:
            try:
                while self._code is None:
                    self._note(None if ends_s is None else max(0.0, ends_s - time.monotonic()))
            except TimeoutError:
                return None
            except EOFError:
                self._over(-signal.SIGKILL)  # its keeper was killed, and it with it
            return self._code

    def signal(self, which: int) -> None:
        """From any thread. The command alone gets it, if it has not ended."""
        with suppress(OSError):
            self._line.send(bytes([which]))

    def end(self) -> None:
        """Kill it, with all its processes, and wait until they are gone. Nothing happens if it has ended."""
        with self._waiting:
            if self._code is not None:
                return
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)
            with suppress(TimeoutError, EOFError):  # a process that waits for a device ends later, and its keeper with it
                while self._code is None:
                    self._note(_END_S)
            if self._code is None:
                self._over(-signal.SIGKILL)

    def printed(self) -> str:
        """The end of what was kept."""
        return self._printed if self._file is None else read_end(self._file.fileno())

    def how_it_ended(self) -> str:
        """Goes on from its name: "ended with code 3: ValueError: no rows"."""
        return exit_words(self._code, self.printed(), self._limit_s)

    def _note(self, limit_s: float | None) -> None:
        told = self._messages.receive(limit_s)
        self._pid = told.get("pid", self._pid)
        if "code" in told:
            self._over(told["code"])

    def _over(self, code: int) -> None:
        self._code = code
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(_END_S)
        self._line.close()
        if self._file is not None:
            self._printed = read_end(self._file.fileno())
            self._file.close()
            self._file = None
