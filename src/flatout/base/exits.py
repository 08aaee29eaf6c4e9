"""How a process ended, in words: its exit code or signal, and the last line that it printed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from flatout.base.units import show_seconds

_KEPT_BYTES = 16_000
_LONGEST_LINE = 300


def exit_words(code: int | None, printed: str = "", limit_s: float = 0.0) -> str:
    """Goes on from the process's name: "ended with code 3: ValueError: no rows". No code: nothing came in time."""
    if code is None:
        said = f"gave no answer within {show_seconds(limit_s)}"
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
    """Of a file that a process printed to. Its position, which that process may share, stays as it is."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, _KEPT_BYTES, max(0, size - _KEPT_BYTES)).decode(errors="replace")


def printed_to(path: Path) -> str:
    """The end of what was printed to this file; empty where there is none."""
    try:
        with path.open("rb") as file:
            return read_end(file.fileno())
    except FileNotFoundError:
        return ""
