"""What a command has done for a study before anything of it was known: a user waits for this too."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from flatout.tuning.crew.template import TrialTemplate


class StudyStart:
    """`began_s`: when the command began, by the monotonic clock. The template of processes imports torch beside the command."""

    def __init__(self, began_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.began_s = clock() if began_s is None else began_s
        self.template = TrialTemplate()

    def __enter__(self) -> StudyStart:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.template.close()
