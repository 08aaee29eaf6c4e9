"""Ends process trees. Run as a program, it supervises one command: it ends all of its processes when the owner dies.

    owner <- socket -> keeper -> command -> all that the command starts

The kernel closes the socket however the owner ends, even after SIGKILL. A parent-death signal would not be enough: it does not
reach the command's children, and it is sent when the thread that started the command ends. The owner sends signal numbers, one
byte each; the keeper answers with the command's process id and later its exit code.

It is run by path, without site-packages, to start in milliseconds, so it imports only the standard library.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # from Linux's prctl.h
_LOOK_S = 1.0
_LONGEST_PAUSE_S = 0.1
_CANT_START = 127  # the same code as shells use

FOREGROUND, BACKGROUND = "foreground", "background"


def adopt_orphans() -> None:
    """Orphans below this process become its children, so that `end_descendants` finds them (Linux)."""
    _prctl(_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """This process gets SIGKILL when the thread that forked it ends (Linux). Changing user or capabilities clears this."""
    _prctl(_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(of: int) -> list[int]:
    """All processes below this one, including zombies. Empty on systems without /proc."""
    found = [of]
    for parent in found:  # the list grows meanwhile
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as children:
                    found += map(int, children.read().split())
    return found[1:]


def end_group(leader: int) -> None:
    """Kill a process group. The kernel does it at once, so processes that keep forking can't escape."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_descendants() -> None:
    """Kill and reap every process below this one. Finds those that left their session only if orphans were adopted."""
    pause_s = 0.001
    while below := descendants(os.getpid()):
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                group = os.getpgid(pid)  # works for a zombie too, and its last fork is in that group
                os.kill(pid, signal.SIGKILL)
                if group != os.getpgrp():
                    end_group(group)
        reap()
        time.sleep(pause_s)  # a process blocked on a device or disk ends when that answers
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    reap()


def readable(descriptors: Sequence[int], limit_s: float | None) -> set[int]:
    """The descriptors that can be read or were closed at the other end; empty after a timeout. Unlike `select`, this works in
    a process with more than 1024 open files."""
    watched = select.poll()
    for one in descriptors:
        watched.register(one, select.POLLIN)
    return {one for one, _ in watched.poll(None if limit_s is None else math.ceil(limit_s * 1000))}


def reap() -> dict[int, int]:
    """The exit codes of children that have ended, negative for a signal."""
    codes: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            codes[found[0]] = os.waitstatus_to_exitcode(found[1])
    return codes


class Wakeups:
    """A descriptor that becomes readable when a child ends or stops. One per process, in its main thread."""

    def __init__(self) -> None:
        self.descriptor, self._written_to = os.pipe()
        os.set_blocking(self._written_to, False)
        os.set_blocking(self.descriptor, False)
        signal.set_wakeup_fd(self._written_to, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def forget(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass

    def close(self) -> None:
        """In a forked process: restore default signal handling."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self.descriptor)
        os.close(self._written_to)


def _ignore_signals() -> dict[int, Any]:
    """Signals sent to the whole job are for the owner, which may want to save first. Returns the previous handlers."""
    needed = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD}
    crashes = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
    return {one: signal.signal(one, signal.SIG_IGN) for one in signal.valid_signals() - needed - crashes}


def _handle_again(before: Mapping[int, Any]) -> None:
    ignored_by_python = (signal.SIGPIPE, signal.SIGXFSZ)
    for one, handler in before.items():
        was_ignored = handler is signal.SIG_IGN and one not in ignored_by_python
        signal.signal(one, signal.SIG_IGN if was_ignored else signal.SIG_DFL)


def _become(command: list[str], where: str, keeper: int, before: Mapping[int, Any]) -> NoReturn:
    try:
        if where == BACKGROUND:
            os.setsid()  # Ctrl-C must reach only the owner, which then ends the command
        end_with_parent()
        _handle_again(before)
        if os.getppid() == keeper:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"can't start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_CANT_START)


def keep(line: int, where: str, passed: Sequence[int], command: list[str]) -> None:
    """Wait until the command or its owner ends. Background processes of a foreground command keep running, as in a shell."""
    owner, keeper = os.getppid(), os.getpid()
    before = _ignore_signals()
    adopt_orphans()
    os.set_inheritable(line, False)
    wakeups = Wakeups()
    pid = os.fork()
    if not pid:
        wakeups.close()
        _become(command, where, keeper, before)
    for descriptor in passed:
        os.close(descriptor)  # only the command holds them, so the owner sees when it closes them
    _tell(line, f'{{"pid": {pid}}}\n')
    code: int | None = None
    while code is None and os.getppid() == owner:  # a fork of the owner may keep the socket open
        ready = readable([line, wakeups.descriptor], _LOOK_S)
        if line in ready:
            try:
                asked = os.read(line, 64)
            except ConnectionError:
                break
            if not asked:
                break
            for number in asked:
                with suppress(OSError):
                    os.kill(pid, number)
        wakeups.forget()
        code = reap().get(pid)
    if code is None:
        os.kill(pid, signal.SIGKILL)
        end_group(pid)  # a foreground command has no group of its own
    elif where == BACKGROUND and sys.platform != "linux":
        end_group(pid)  # on systems where a process's children can't be listed
    if code is None or where == BACKGROUND:
        end_descendants()
    if code is not None:
        _tell(line, f'{{"code": {code}}}\n')


def _tell(line: int, message: str) -> None:
    with suppress(OSError):
        os.write(line, message.encode())


if __name__ == "__main__":
    _line, _where, _passed, *_command = sys.argv[1:]
    keep(int(_line), _where, [int(one) for one in _passed.split(",") if one], _command)
