"""One process forked from a template, used like a `Child`: it ends when it is told to, and what it printed last can be read."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.base.exits import exit_words, read_end
from flatout.base.fork_server import ForkServer, ForkServerGone

_START_S, _END_S, _NO_LIMIT_S = 120.0, 30.0, 1e9


class ForkedChild:
    """The template gives its work the `passed` descriptors, then one for stdout and one for stderr."""

    def __init__(self, template: ForkServer, asked: Mapping[str, Any], passed: Sequence[int]) -> None:
        self._template = template
        self._code: int | None = None
        self._printed = ""
        self._waiting = threading.Lock()  # the template reports an exit code once
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  closed when it has ended
        try:
            self.pid = template.start(asked, [*passed, *(file.fileno() for file in self._files)], limit_s=_START_S)
        except (OSError, TimeoutError) as gone:
            self._close()
            raise RuntimeError(f"the process that forks others {gone}") from None

    def wait(self, limit_s: float | None = None) -> int | None:
        """The exit code, negative for a signal; None if it is still running after `limit_s`."""
        with self._waiting:
            if self._code is None:
                try:
                    code = self._template.wait_for_end(self.pid, _NO_LIMIT_S if limit_s is None else limit_s)
                except (ForkServerGone, ValueError):  # ended, or closed: then its socket has no number any more
                    code = -signal.SIGKILL  # with the template ends what it has forked
                if code is not None:
                    self._over(code)
            return self._code

    def end(self) -> None:
        """Kill it and all processes it started, and wait until they are gone. Does nothing if it has ended."""
        if self._code is None:
            self._template.signal(self.pid, signal.SIGKILL)
            if self.wait(_END_S) is None:  # blocked on a device: it ends when that answers
                self._over(-signal.SIGKILL)

    def printed(self) -> str:
        """The last part of its output: stdout, then stderr."""
        if not self._files:
            return self._printed
        ends = [read_end(file.fileno()) for file in self._files]
        return "".join(end if end.endswith("\n") else f"{end}\n" for end in ends if end)

    def how_it_ended(self) -> str:
        return exit_words(self._code, self.printed())

    def _over(self, code: int) -> None:
        self._code = code
        self._printed = self.printed()
        self._close()

    def _close(self) -> None:
        files, self._files = self._files, []
        for file in files:
            file.close()
