"""A program that is hard to end: it ignores signals, and a daemon of it has left its session. Both tell that they run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn


def grow(folder: Path) -> NoReturn:
    """A file in `folder` is named after each of its two processes."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
    (folder / str(os.getpid())).touch()
    while True:
        time.sleep(60)


class GrowingTask:
    """As a worker gets it."""

    dataset = None

    def settle(self, terms: Any) -> None: ...

    def __call__(self, job: str, memory: Any) -> Any:
        grow(Path(job))


if __name__ == "__main__":
    grow(Path(sys.argv[1] if len(sys.argv) == 2 else os.environ["PROCESS_TREE"]))
