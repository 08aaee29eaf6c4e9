"""How the numbers of a tensor lie in memory."""

from __future__ import annotations

from torch import Tensor


def has_no_gaps(x: Tensor) -> bool:
    """Whether its numbers lie next to each other in memory, in any order of the axes."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
