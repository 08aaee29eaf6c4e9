"""When the command began: before its modules were imported, for which a user waits too."""

from __future__ import annotations

from contextvars import ContextVar

BEGAN_S: ContextVar[float | None] = ContextVar("began_s", default=None)
"""By the monotonic clock. None: it was called from a program."""
