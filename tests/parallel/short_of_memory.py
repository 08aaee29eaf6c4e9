"""Rank 1 runs out of memory above two rows."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import training

from flatout.engine.passes import Passes

forward = Passes._forward
used: list[int] = []


def with_little_room(passes: Passes, compute: Any, batch: dict[str, torch.Tensor]) -> Any:
    rows = len(next(iter(batch.values())))
    if os.environ["RANK"] == "1" and rows > 2:
        raise torch.OutOfMemoryError("no room for more than two rows")
    used.append(rows)
    return forward(passes, compute, batch)


patched: Any = Passes
patched._forward = with_little_room
code = training.main()
print(max(used[-20:]))
sys.exit(code)
