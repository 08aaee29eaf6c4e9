"""The content of files as BLAKE3, several files or parts of one file at once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from flatout.base.errors import DataError

_PIECE_BYTES = 8 << 20
_LARGE_BYTES = 64 << 20
_TRIES = 3


def digest_of(content: object) -> str:
    """Of JSON; objects with the same content have the same digest, whatever the order of their keys."""
    return str(blake3(json.dumps(content, sort_keys=True).encode()).hexdigest())


def digest_of_bytes(content: bytes) -> str:
    return str(blake3(content).hexdigest())


def digests_of_files(files: Mapping[str, str]) -> dict[str, tuple[os.stat_result, str]]:
    """By name: what the file system said of the file as it was read, and the digest of its content."""
    cores = len(os.sched_getaffinity(0))
    if not files:
        return {}
    threads = max(1, cores // len(files))  # few files share the cores between them
    if len(files) == 1 or cores == 1:
        return {name: _digest(path, threads) for name, path in files.items()}
    from concurrent.futures import ThreadPoolExecutor  # here: it takes a while to load

    with ThreadPoolExecutor(min(cores, len(files)), "hash") as crew:
        return dict(zip(files, crew.map(lambda path: _digest(path, threads), files.values()), strict=True))


def _digest(path: str, threads: int) -> tuple[os.stat_result, str]:
    for _ in range(_TRIES):
        try:
            with open(path, "rb", buffering=0) as file:
                before = os.fstat(file.fileno())
                digest = _read(file, before.st_size, threads)
                after = os.fstat(file.fileno())
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror}") from error
        if moment(before) == moment(after):
            return after, digest
    raise DataError(f"{path} changes while it is read: wait until whatever writes it has ended")


def _read(file: Any, size: int, threads: int) -> str:
    # a number of threads is a pool of this hasher's own: one for the whole process would not survive a fork
    content = blake3(max_threads=threads if size >= _LARGE_BYTES else 1)
    room = bytearray(min(_PIECE_BYTES, max(size, 1) + 1))
    view = memoryview(room)
    while filled := file.readinto(room):
        content.update(view[:filled])
    return str(content.hexdigest())


def moment(about: os.stat_result) -> tuple[int, int, int, int]:
    """What differs if a file was written meanwhile. Only the system sets the change time: `cp -p` leaves a trace in it."""
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino
