"""Error text, and whether an error is probably a consequence of another rank's failure: a broken exchange."""

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
    """The error's last line and its traceback; the traceback is empty for errors written for users."""
    if isinstance(error, FlatoutError):
        return str(error), ""
    return "".join(traceback.format_exception_only(error)).strip(), "".join(traceback.format_exception(error))
