"""What a supervisor does with any process that it started: end it, say how it ended, and wait before the next is started."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flatout.base.exits import exit_words
from flatout.base.fork_server import ForkServer, ForkServerGone
from flatout.serving.control import ControlLine
from flatout.serving.running import RunningExecutor, RunningFront

_END_S = 2.0
_SOON_S = 1.0  # between two tries to start what ends at once
_STARTS_AT_ONCE = 5  # ends within a minute, after which starting again waits longer

Running = RunningExecutor | RunningFront


class Processes:
    """Those that `template` forks."""

    def __init__(self, template: ForkServer) -> None:
        self._template = template
        self._ends: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_over = False

    def start(self, asked: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        return self._template.start(asked, descriptors)

    def can_start(self) -> bool:
        return self._template.is_alive()

    def kill(self, one: Running) -> None:
        """Without waiting for its end."""
        self._template.signal(one.pid, signal.SIGKILL)

    def end(self, one: Running) -> None:
        if not one.has_ended:
            self.kill(one)
            with suppress(ForkServerGone):
                one.has_ended = self._template.wait_for_end(one.pid, _END_S) is not None
        self.forget_line(one.line)

    def end_all(self, running: Collection[Running]) -> None:
        self.is_over = True
        for one in running:
            if not one.has_ended:
                self.kill(one)
        for one in running:
            self.end(one)

    def how_it_ended(self, one: Running) -> str:
        code = None
        with suppress(ForkServerGone):
            code = self._template.wait_for_end(one.pid, _END_S)
        one.has_ended = code is not None
        return exit_words(code) if code is not None else "closed its connection"

    def forget_line(self, line: ControlLine) -> None:
        if line.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(line.fileno())
            line.close()

    def pause_s(self) -> float:
        """Before something that ended is started again: nothing at first, longer if it ends again and again."""
        now_s = time.monotonic()
        self._ends = [*(at_s for at_s in self._ends if now_s - at_s < 60), now_s]
        return 0.0 if len(self._ends) <= _STARTS_AT_ONCE else _SOON_S * min(30, len(self._ends) - _STARTS_AT_ONCE)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        self._template.close()
