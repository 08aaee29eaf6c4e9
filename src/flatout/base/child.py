"""One supervised child process: all processes it started end when it ends, when it is killed, or when this process dies.

A keeper process (see `keeper`) runs between the two for as long as the child runs. The child's output can be kept in unnamed
temporary files, which the system removes however this process ends.
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
from pathlib import Path
from types import TracebackType
from typing import IO

from flatout.base import keeper
from flatout.base.exits import exit_words, read_end
from flatout.base.messages import Messages

_END_S = 30.0


class Printed(Enum):
    """Where a child's output goes."""

    KEPT = "kept"  # can be read with `printed` and `how_it_ended`
    SHOWN = "shown"  # to this process's own stdout or stderr
    DROPPED = "dropped"


class Child:
    """`given` is the child's stdin. The child inherits the `passed` descriptors; the caller closes its own copies.

    A foreground child shares the terminal, Ctrl-C and stdin with this process, and its background processes outlive it.
    Any other child has its own session: Ctrl-C reaches only this process, which then ends the child.
    `output` and `errors` may be open files, whose ends `printed` does not know. `folder`: where the child starts.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        given: str = "",
        output: Printed | IO[bytes] = Printed.KEPT,
        errors: Printed | IO[bytes] = Printed.KEPT,
        passed: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        foreground: bool = False,
        folder: Path | None = None,
    ) -> None:
        self._pid: int | None = None
        self._code: int | None = None
        self._limit_s = 0.0
        self._printed = ""
        self._waiting = threading.Lock()
        # Two files: stdout is often buffered and flushed at exit, after the error that explains the exit was written to stderr.
        self._files: dict[str, IO[bytes]] = {
            name: tempfile.TemporaryFile()  # noqa: SIM115  closed when the child has ended
            for name, printed in (("stdout", output), ("stderr", errors))
            if printed is Printed.KEPT
        }
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
                stdout=self._target("stdout", output),
                stderr=self._target("stderr", errors),
                pass_fds=(theirs.fileno(), *passed),
                env=environment,
                start_new_session=not foreground,
                cwd=folder,
            )

    def _target(self, name: str, printed: Printed | IO[bytes]) -> IO[bytes] | int | None:
        if not isinstance(printed, Printed):
            return printed
        return {Printed.KEPT: self._files.get(name), Printed.SHOWN: None, Printed.DROPPED: subprocess.DEVNULL}[printed]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Process id of the command. Waits some milliseconds until it is started. EOFError: its keeper was killed first."""
        with self._waiting:
            while self._pid is None:
                self._note(None)
            return self._pid

    def wait(self, limit_s: float | None = None) -> int | None:
        """The exit code, negative for a signal; None if the child is still running after `limit_s`."""
        self._limit_s = limit_s or 0.0
        ends_s = None if limit_s is None else time.monotonic() + limit_s
        with self._waiting:
            try:
                while self._code is None:
                    self._note(None if ends_s is None else max(0.0, ends_s - time.monotonic()))
            except TimeoutError:
                return None
            except EOFError:
                self._over(-signal.SIGKILL)  # its keeper was killed, which kills the child too
            return self._code

    def signal(self, which: int) -> None:
        """Send a signal to the command alone, if it still runs. Any thread may call this."""
        with suppress(OSError):
            self._line.send(bytes([which]))

    def end(self) -> None:
        """Kill the child and all processes it started, and wait until they are gone. Does nothing if it has ended."""
        with self._waiting:
            if self._code is not None:
                return
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)
            with suppress(TimeoutError, EOFError):  # a process blocked on a device ends later, with its keeper
                while self._code is None:
                    self._note(_END_S)
            if self._code is None:
                self._over(-signal.SIGKILL)

    def printed(self) -> str:
        """The last part of the kept output: stdout, then stderr."""
        if not self._files:
            return self._printed
        ends = [read_end(file.fileno()) for file in self._files.values()]
        return "".join(end if end.endswith("\n") else f"{end}\n" for end in ends if end)

    def how_it_ended(self) -> str:
        """To append to the child's name: "ended with code 3: ValueError: no rows". Prefers the last line of stderr."""
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
        self._printed, files, self._files = self.printed(), self._files, {}
        for file in files.values():
            file.close()
