"""A process that ends at once when it is done, without taking itself apart."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def leave(exit_code: int) -> NoReturn:
    """As at any end its threads are waited for, its exit functions called and its output written; then it is gone.

    What Python does after that is not for every process. One that was forked off a profiler would wait for threads that it
    doesn't have. One that trained with others still has Gloo's threads, and where one of them asks for Python's lock while the
    interpreter goes down, the process aborts (SIGABRT), and its launcher takes a run that is finished for one that failed.
    """
    if threading.current_thread() is threading.main_thread():
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)
