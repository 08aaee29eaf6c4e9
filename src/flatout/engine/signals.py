"""SIGTERM, SIGHUP and SIGINT request a stop after the current step. The state is saved there, not in the handler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODES = {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}


class StopRequest:
    """Polled by the loop, by evaluations and by everything else that takes long."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def __bool__(self) -> bool:
        return self.signal_name is not None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.signal_name or "SIGTERM"]


_under_way: list[StopRequest] = []


def ask_to_stop(signal_name: str = "SIGTERM") -> None:
    """Does what the signal does, for runs in threads that get no signals, such as Ray Train's workers."""
    for request in list(_under_way):
        request.signal_name = request.signal_name or signal_name


@contextmanager
def watch_signals() -> Iterator[StopRequest]:
    """Handlers are set only while a run lasts. A second Ctrl-C interrupts at once, without saving."""
    request = StopRequest()
    _under_way.append(request)
    try:
        if threading.current_thread() is not threading.main_thread():
            yield request  # Python delivers signals to the main thread only, and this is another one
        else:
            with _handled(request):
                yield request
    finally:
        _under_way.remove(request)


@contextmanager
def _handled(request: StopRequest) -> Iterator[None]:
    def ask(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if request and name == "SIGINT":
            raise KeyboardInterrupt
        request.signal_name = request.signal_name or name

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, *_hangup())}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python


def _hangup() -> tuple[signal.Signals, ...]:
    """SIGHUP, sent when a terminal closes, unless it is ignored already: under `nohup` the run should continue."""
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return ()
    return (signal.SIGHUP,)
