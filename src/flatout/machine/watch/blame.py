"""Whether an error is likely the echo of another rank's end: an exchange that broke, as the engines word it."""

from __future__ import annotations

import re
import traceback

from flatout.machine.watch.stacks import kind_of

_BROKEN = re.compile(
    r"(?i)gloo|nccl|connection (was )?(closed|reset|refused)|broken pipe|remote (process|end)|peer|timed? ?out"
)


def from_exchange(error: BaseException) -> bool:
    if not isinstance(error, (RuntimeError, OSError)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and kind_of(frames[-1].filename) == "distributed"
    return inside or bool(_BROKEN.search(str(error)))
