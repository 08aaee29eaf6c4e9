"""Messages between processes: JSON lines over pipes or sockets used for nothing else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from flatout.base.keeper import readable

_SHOWN = 100


class BadMessage(ValueError):
    """Received something that is not a message; the error quotes it."""


class Messages:
    """Messages received from another process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def receive(self, limit_s: float | None) -> dict[str, Any]:
        """The next message. TimeoutError: none came in time. EOFError: the other process closed its end."""
        ends_s = None if limit_s is None else time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            if not readable([self._descriptor], left_s):
                raise TimeoutError("no message arrived in time")
            self._buffer += self._more()
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError:
            raise BadMessage(f"expected a line of JSON, got {_shown(line)}") from None
        if not isinstance(found, dict):
            raise BadMessage(f"expected a JSON object, got {_shown(line)}")
        return found

    def _more(self) -> bytes:
        try:
            piece = os.read(self._descriptor, 1 << 16)
        except ConnectionError:
            piece = b""
        if not piece:
            within = f" in the middle of a message: {_shown(self._buffer)}" if self._buffer else ""
            raise EOFError(f"the pipe was closed{within}")
        return piece


def _shown(line: bytes) -> str:
    return repr(line[:_SHOWN].decode(errors="replace")) + ("..." if len(line) > _SHOWN else "")


class Questions:
    """Two pipes to a process that answers questions: it reads from `asked_from` and writes to `answered_to`."""

    def __init__(self) -> None:
        self.asked_from, self._asks = os.pipe()
        self._answers, self.answered_to = os.pipe()
        self._messages = Messages(self._answers)

    def hand_over(self) -> None:
        """Close our copies once the other process has its ends, so that we notice when it is gone."""
        os.close(self.asked_from)
        os.close(self.answered_to)

    def close(self) -> None:
        os.close(self._asks)
        os.close(self._answers)

    def ask(self, question: Mapping[str, Any]) -> None:
        """Raises EOFError if the other process is gone."""
        try:
            os.write(self._asks, json.dumps(question).encode() + b"\n")
        except BrokenPipeError:
            raise EOFError("the pipe was closed") from None

    def answer(self, limit_s: float | None) -> dict[str, Any]:
        return self._messages.receive(limit_s)
