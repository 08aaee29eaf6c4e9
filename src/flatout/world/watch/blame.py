"""What an error says, and whether it is likely the echo of another rank's end: an exchange that broke, as engines word it."""

from __future__ import annotations

import re
import traceback

from flatout.base.errors import FlatoutError
from flatout.world.watch.stacks import kind_of

_BROKEN = re.compile(
    r"(?i)gloo|nccl|connection (was )?(closed|reset|refused)|broken pipe|remote (process|end)|peer|timed? ?out"
)


def from_exchange(error: BaseException) -> bool:
    if not isinstance(error, (RuntimeError, OSError)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and kind_of(frames[-1].filename) == "distributed"
    return inside or bool(_BROKEN.search(str(error)))


def in_words(error: BaseException) -> tuple[str, str]:
    """Its last line and its traceback, which one that was written for people does not need."""
    if isinstance(error, FlatoutError):
        return str(error), ""
    return "".join(traceback.format_exception_only(error)).strip(), "".join(traceback.format_exception(error))
