"""Questions to another process and its answers: lines of JSON on two pipes that nothing else writes to."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from typing import Any

_LOOK_S = 0.2


class Questions:
    """The other end reads from `asked_from` and writes to `answered_to`."""

    def __init__(self) -> None:
        self.asked_from, self._asks = os.pipe()
        self._answers, self.answered_to = os.pipe()
        self._buffer = b""

    def hand_over(self) -> None:
        """Once the other process has its ends: it alone holds them, so that it shows when it has gone."""
        os.close(self.asked_from)
        os.close(self.answered_to)

    def close(self) -> None:
        os.close(self._asks)
        os.close(self._answers)

    def ask(self, question: Mapping[str, Any]) -> None:
        """EOFError where nobody is there to be asked."""
        try:
            os.write(self._asks, json.dumps(question).encode() + b"\n")
        except BrokenPipeError:
            raise EOFError from None

    def answer(self, limit_s: float) -> dict[str, Any]:
        """TimeoutError where none came in time, EOFError where none will."""
        ends_s = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            if time.monotonic() > ends_s:
                raise TimeoutError
            if select.select([self._answers], [], [], _LOOK_S)[0]:
                piece = os.read(self._answers, 1 << 16)
                if not piece:
                    raise EOFError
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found
