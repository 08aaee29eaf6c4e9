"""The places where the host may wait for the device. Everywhere else it must not, and a test proves that it does not.

`sync_point()` marks such a place: inside it CUDA's sync debugging is off, and `inside_sync_point()` is true for a test that
counts scalar reads on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_depth = 0


@contextmanager
def sync_point() -> Iterator[None]:
    global _depth
    strict = torch.cuda.is_initialized() and torch.cuda.get_sync_debug_mode()
    if strict:
        torch.cuda.set_sync_debug_mode(0)
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if strict:
            torch.cuda.set_sync_debug_mode(strict)


def inside_sync_point() -> bool:
    return _depth > 0
