"""Schedules: when requests arrive, made before the first is sent."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flatout.base.errors import UsageError

Seconds = npt.NDArray[np.float64]
MOST_REQUESTS = 30_000_000  # of one run: 32 bytes of memory each


def poisson(rate: float, seconds: float, seed: int) -> Seconds:
    """Independent clients: gaps are exponential. Bursts are part of it."""
    _check_count(rate * seconds)
    draw = np.random.default_rng(seed)
    wanted = rate * seconds
    times_s = np.cumsum(draw.exponential(1 / rate, math.ceil(wanted + 6 * math.sqrt(wanted) + 10)))
    return times_s[times_s < seconds]


def constant(rate: float, seconds: float) -> Seconds:
    _check_count(rate * seconds)
    times_s: Seconds = np.arange(max(1, math.ceil(rate * seconds - 1e-9))) / rate
    return times_s


def recorded(path: Path) -> Seconds:
    """One arrival a line, in seconds, in any order and from any start: the first is sent at once."""
    try:
        lines = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--arrivals: {path} can't be read as text: {error}") from error
    try:
        times_s = np.sort(np.array(lines, dtype=np.float64))
    except ValueError:
        line = next(number for number, text in enumerate(lines, 1) if not _is_number(text))
        raise UsageError(f"--arrivals: {path} must have one number of seconds a line; {lines[line - 1]!r} is none") from None
    if len(times_s) == 0 or not np.isfinite(times_s).all():
        raise UsageError(f"--arrivals: {path} must have one number of seconds a line; it has {len(lines)} lines")
    _check_count(len(times_s))
    from_first: Seconds = times_s - times_s[0]
    return from_first


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_count(count: float) -> None:
    if count > MOST_REQUESTS:
        raise UsageError(f"this is {count:,.0f} requests; one run keeps every latency, of {MOST_REQUESTS:,} requests at most: "
                         "take a shorter --for or a lower --rate")  # fmt: skip
