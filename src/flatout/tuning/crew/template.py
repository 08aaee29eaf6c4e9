"""A process that has imported what the processes of trials need, and forks each of them in milliseconds.

A command that has computed nothing yet forks it off itself; a program may have threads and have computed, so that there the
template is a new interpreter, which imports beside it. Linux alone: elsewhere every process of trials is a new interpreter.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from flatout.base.answering_child import Start
from flatout.base.fork_server import ForkServer, Work
from flatout.base.forked_child import ForkedChild


class TrialTemplate:
    """Begin it early and close it at the end. What it has forked ends with it, and all of it with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._server: ForkServer | None = None
        self._has_forked = False

    def __enter__(self) -> TrialTemplate:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    @staticmethod
    def is_possible() -> bool:
        return sys.platform == "linux"

    def fork_here(self, work: Work) -> None:
        """Off this process, which has computed nothing yet and has imported what trials need."""
        if self.is_possible() and self._server is None:
            gc.freeze()  # garbage collection in a fork would write to every object, and so copy all shared pages
            self._server = ForkServer.forked_here(work)

    def begin(self) -> None:
        """Does not wait for the imports."""
        if self.is_possible() and (self._server is None or not self._server.is_alive()):
            self._has_forked = False
            self._server = ForkServer.booted(self._boot)

    def forks(self, told: Mapping[str, Any]) -> Start:
        """`told`: what a process has to know of the recipe."""

        def start(ends: tuple[int, int]) -> ForkedChild:
            self.begin()  # one that was killed is started again
            assert self._server is not None
            self._has_forked = True
            return ForkedChild(self._server, told, ends)

        return start

    def close(self) -> None:
        if self._server is None:
            return
        if self._process is not None and not self._has_forked:
            self._process.kill()  # it may still be importing, and has nothing to end
        self._server.close()
        self._process = self._server = None
        self._has_forked = False

    def _boot(self, line: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flatout.cli.study_worker", str(line)]
        # a session of its own: Ctrl-C reaches the command alone
        self._process = subprocess.Popen(command, pass_fds=[line], stdin=subprocess.DEVNULL, start_new_session=True)
        return self._process
