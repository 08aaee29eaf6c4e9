"""How a process ended, as text: its exit code or signal, and the last line it printed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from flatout.base.units import show_seconds

_KEPT_BYTES = 16_000
_LONGEST_LINE = 300


def exit_words(code: int | None, printed: str = "", limit_s: float = 0.0) -> str:
    """To append to a process's name: "ended with code 3: ValueError: no rows". `code` None means a timeout after `limit_s`."""
    if code is None:
        said = f"did not answer within {show_seconds(limit_s)}"
    elif code < 0:
        said = f"was killed by {signal_name(-code)}"
    else:
        said = f"ended with code {code}"
    last = last_line(printed)
    return f"{said}: {last}" if last else said


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_LINE] if lines else ""


def read_end(descriptor: int) -> str:
    """The last part of a file a process prints to. Keeps the file position, which that process may share."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, _KEPT_BYTES, max(0, size - _KEPT_BYTES)).decode(errors="replace")


def printed_to(path: Path) -> str:
    """The last part of this file; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            return read_end(file.fileno())
    except FileNotFoundError:
        return ""
