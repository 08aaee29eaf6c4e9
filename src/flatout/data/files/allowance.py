"""How much memory what is read may take: no more than is free, and said before it is taken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from flatout.base.errors import DataError
from flatout.base.units import show_bytes
from flatout.machine.host import free_host_bytes

_SHARE = 0.8  # of what is free: the rest is for what is made of it


def allowed_bytes() -> int:
    """What may be taken now: a share of what is free on this machine, in this container and below this process's own limit."""
    return max(0, int(_SHARE * min(free_host_bytes(), _below_own_limit())))


def check_fits(nbytes: int, name: str, why: str = "its content is") -> None:
    """DataError unless so many bytes of memory can be had. `why` begins the sentence that says what is so large."""
    allowed = allowed_bytes()
    if nbytes > allowed:
        raise too_large(name, f"{why} {show_bytes(nbytes)}", allowed)


class Allowance:
    """Memory for something whose size shows only as it is read: each piece is counted before it is kept."""

    def __init__(self) -> None:
        self._allowed = allowed_bytes()
        self._taken = 0

    def take(self, nbytes: int, name: str) -> None:
        self._taken += nbytes
        if self._taken > self._allowed:
            raise too_large(name, f"what was read of it takes more than {show_bytes(self._allowed)}", self._allowed)


class TooLarge(DataError):
    """Not a bad sample, to be left out, but a machine too small for the file."""


def too_large(name: str, what: str, allowed: int) -> TooLarge:
    return TooLarge(
        f"{name} does not fit into memory: {what}, and {show_bytes(allowed)} may be taken here (80% of what is free). "
        "Read it in parts or on a machine with more memory; if it should be small, it is damaged or made to fill memory"
    )


@contextmanager
def within_memory(name: str) -> Iterator[None]:
    """An allocation that fails although it was counted: an error in words, not a traceback."""
    try:
        yield
    except MemoryError as error:
        raise too_large(name, "an allocation failed while it was read", allowed_bytes()) from error


def _below_own_limit() -> int:
    """What `ulimit -v` leaves of addresses."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if most == resource.RLIM_INFINITY else max(0, most - psutil.Process().memory_info().vms)
