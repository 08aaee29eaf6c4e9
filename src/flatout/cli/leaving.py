"""How a command ends: in order when a signal asks for it, and at once when it is done, without taking itself apart."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

_SOON_S, _MOST = 0.05, 200  # seconds until a signal is asked for again, and how often: an import may be the user's own work


class Ended(SystemExit):
    """A signal asked for the end of something that has nothing to save."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal_name = signal.Signals(number).name


@contextmanager
def ends_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as an error does: processes that it started end, temporary folders are removed.

    None of them, nor Ctrl-C, interrupts an import. A run has handlers of its own while it trains. What the shell ignores for
    us, as `nohup` does, stays ignored.
    """
    asked = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    interrupts = [number for number in (signal.SIGINT,) if signal.getsignal(number) is signal.default_int_handler]
    owner, put_off = os.getpid(), 0

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # of a process that was forked off, such as a loader's worker: as if we were not there
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)
            return
        nonlocal put_off
        if _is_importing(frame) and put_off < _MOST:
            put_off += 1
            again = threading.Timer(_SOON_S, os.kill, (owner, number))
            again.daemon = True
            again.start()
            return
        if number in interrupts:
            signal.default_int_handler(number, frame)
        for one in asked:
            signal.signal(one, signal.SIG_IGN)  # once is enough: what tidies up is not to be interrupted
        raise Ended(number)

    before: dict[signal.Signals, Any] = {number: signal.signal(number, end) for number in (*asked, *interrupts)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    """Torch's C++ calls Python while it is imported, and an error that comes up there aborts the process (SIGABRT)."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def deaf_to_signals() -> None:
    """It is known how the process ends: one more Ctrl-C, while the interpreter goes down, would only print a traceback."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


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
