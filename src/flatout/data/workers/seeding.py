"""Seeds Python's, NumPy's and torch's generators before each sample of a user's dataset.

The random numbers of a sample are then a function of (seed, visit, number), whichever worker reads it.
"""

from __future__ import annotations

import hashlib
import random
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_64_BITS = (1 << 64) - 1
_ONE_AT_A_TIME = threading.RLock()  # the generators belong to the whole process


def set_generators(seed: int, visit: int, number: int) -> None:
    content = struct.pack("<QqQ", seed & _64_BITS, visit, number)
    key = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


@contextmanager
def borrowed_generators() -> Iterator[None]:
    """Restores the generators afterwards, for a process that uses them elsewhere.

    Held by the thread that waits for samples, not by the thread that reads them, which may hang.
    """
    with _ONE_AT_A_TIME:
        before = generators()
        try:
            yield
        finally:
            python, array, tensor = before
            random.setstate(python)
            np.random.set_state(array)
            torch.default_generator.set_state(tensor)


def generators() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def drawn_since(before: tuple[Any, Any, torch.Tensor]) -> bool:
    """Whether any of the three generators was used."""
    python, array, tensor = generators()
    return (
        python != before[0]
        or array[2:] != before[1][2:]
        or not np.array_equal(array[1], before[1][1])
        or not torch.equal(tensor, before[2])
    )
