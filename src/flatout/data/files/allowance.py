"""Limits on memory: what is read may take 80% of the free memory, and is checked before it is allocated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from flatout.base.errors import DataError
from flatout.base.units import show_bytes
from flatout.machine.host import free_host_bytes

_SHARE = 0.8  # of the free memory: the rest is for what is made of the content


def allowed_bytes() -> int:
    """The bytes that may be taken now: 80% of what this machine, this container and the limit of this process leave free."""
    return max(0, int(_SHARE * min(free_host_bytes(), _below_own_limit())))


def check_fits(nbytes: int, name: str, why: str = "its content is") -> None:
    """DataError if there is no memory for so many bytes. `why` starts the sentence about the size."""
    allowed = allowed_bytes()
    if nbytes > allowed:
        raise too_large(name, f"{why} {show_bytes(nbytes)}", allowed)


class Allowance:
    """Memory for content whose size is not known in advance: each piece is counted before it is kept."""

    def __init__(self) -> None:
        self._allowed = allowed_bytes()
        self._taken = 0

    def take(self, nbytes: int, name: str) -> None:
        self._taken += nbytes
        if self._taken > self._allowed:
            raise too_large(name, f"the part read so far takes more than {show_bytes(self._allowed)}", self._allowed)


class TooLarge(DataError):
    """The file is too large for this machine. Not a bad sample: on_bad='skip' does not leave it out."""


def too_large(name: str, what: str, allowed: int) -> TooLarge:
    return TooLarge(
        f"{name} does not fit into memory: {what}; the limit here is {show_bytes(allowed)} (80% of the free memory). "
        "Read it in parts or on a machine with more memory; if it should be small, it is damaged or malicious"
    )


@contextmanager
def within_memory(name: str) -> Iterator[None]:
    """Turns a failed allocation into an error that names the file."""
    try:
        yield
    except MemoryError as error:
        raise too_large(name, "an allocation failed while it was read", allowed_bytes()) from error


def _below_own_limit() -> int:
    """The addresses that `ulimit -v` leaves."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if most == resource.RLIM_INFINITY else max(0, most - psutil.Process().memory_info().vms)
