"""One line of JSON for each request."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress

from flatout.base.errors import MachineError
from flatout.serving.front.watching import AnsweredRequest


class AccessLog:
    """Several processes append to one file: each writes whole lines at once. "-" is standard error."""

    def __init__(self, path: str) -> None:
        try:
            self._file = 2 if path == "-" else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise MachineError(f"the access log {path} can't be written: {error.strerror}") from error

    def write(self, requests: Sequence[AnsweredRequest]) -> None:
        """A full disk loses lines, never requests."""
        now = round(time.time(), 3)
        lines = [json.dumps(self._line(one, now)) for one in requests]
        with suppress(OSError):
            os.write(self._file, ("\n".join(lines) + "\n").encode())

    def _line(self, request: AnsweredRequest, now: float) -> dict[str, object]:
        line: dict[str, object] = {
            "time": now,
            "method": request.method.decode("latin-1"),
            "url": request.url[:500].decode("latin-1"),
            "status": request.status_code,
            "bytes": request.answer_bytes,
            "ms": round(1e3 * request.total_s, 3),
        }
        if request.model is not None:
            timing = request.timing
            line |= {"model": request.model.name, "version": request.model.version, "rows": request.rows,
                     "batch": timing.batch_rows, "reason": timing.reason.name.lower(),
                     "queue_ms": round(1e3 * timing.queue_s, 3), "compute_ms": round(1e3 * timing.compute_s, 3)}  # fmt: skip
        return line
