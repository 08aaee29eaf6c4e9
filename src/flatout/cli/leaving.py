"""How a command ends: with clean-up after a signal, and at once when it is done, without shutting down the interpreter."""

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

_SOON_S, _MOST = 0.05, 200  # seconds until a signal is retried, and how often: the import may be a user's long-running module


class Ended(SystemExit):
    """A signal asked to end a command that has nothing to save."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal_name = signal.Signals(number).name


@contextmanager
def ends_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command like an error: processes it started end, temporary folders are removed.

    No signal interrupts an import. A run installs its own handlers while it trains. Signals that the shell ignores, as with
    `nohup`, stay ignored.
    """
    asked = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    interrupts = [number for number in (signal.SIGINT,) if signal.getsignal(number) is signal.default_int_handler]
    owner, put_off = os.getpid(), 0

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # in a forked process, such as a loader's worker: default behaviour
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
            signal.signal(one, signal.SIG_IGN)  # only once: the clean-up must not be interrupted
        raise Ended(number)

    before: dict[signal.Signals, Any] = {number: signal.signal(number, end) for number in (*asked, *interrupts)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    """While torch is imported, its C++ code calls Python, and an exception there aborts the process (SIGABRT)."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def deaf_to_signals() -> None:
    """The exit code is decided: another Ctrl-C during interpreter shutdown would only print a traceback."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def leave(exit_code: int) -> NoReturn:
    """Wait for threads, call exit functions and flush output as usual, then exit without interpreter shutdown.

    The shutdown is not safe in every process. A process forked from a profiler would wait for threads that it does not have.
    A process that trained with others still has Gloo's threads: if one of them needs the GIL during shutdown, the process
    aborts (SIGABRT), and its launcher takes a finished run for a failed one. With torch it also takes half a second.
    """
    if threading.current_thread() is threading.main_thread():
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)
