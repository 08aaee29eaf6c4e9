"""Start processes quickly: a template process imports everything they need once, computes nothing, and forks them.

The template is a fork of a process that has computed nothing, or a new interpreter. It has one thread and uses no device, so
its forks behave like new processes. It supervises them: it reports when one stops or ends, kills what that process left
running, and ends every process below it when the owner closes the connection or dies.

    owner -> template   {"start": number, "asked": ..., "descriptors": n}, with n descriptors; {"signal": 9, "pid": pid}
    template -> owner   {"started": number, "pid": pid}; {"pid": pid, "code": exit code or PAUSED}
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from flatout.base.exits import exit_words
from flatout.base.keeper import Wakeups, adopt_orphans, descendants, end_descendants, end_group, readable
from flatout.base.messages import Messages

PAUSED = 1000  # not a possible exit code
_MOST_DESCRIPTORS = 16
_LOOK_S = 1.0
_POLL_S = 0.02
_END_S = 5.0

Work = Callable[[Mapping[str, Any], Sequence[int]], int]  # (request, descriptors) -> exit code


class TemplateProcess(Protocol):
    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        ...

    def kill(self) -> None: ...


class ForkServerGone(OSError):
    """The template has ended. The message says how, to append to the template's name."""


class ForkServer:
    """The owner's side. Any thread may call it; requests run one at a time."""

    def __init__(self, line: socket.socket, template: TemplateProcess) -> None:
        self._line = line
        self._messages = Messages(line.fileno())
        self._asking = threading.Lock()
        self._count = 0
        self._started: dict[int, int] = {}
        self._codes: dict[int, list[int]] = {}  # per process: codes received that no caller has waited for yet
        self._template = template
        self._close = weakref.finalize(self, _close, line, template)

    @classmethod
    def forked_here(cls, work: Work, *, ignores: Sequence[signal.Signals] = ()) -> ForkServer:
        """The template is a fork of this process, which must not have computed anything yet. It and its processes ignore the
        signals `ignores`: a service manager sends them to every process, and only the owner knows what to end first."""
        ours, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise every fork would write the buffered output again
        pid = os.fork()
        if not pid:
            ours.close()
            for one in ignores:
                signal.signal(one, signal.SIG_IGN)
            _be_template(theirs, work)
        theirs.close()
        return cls(ours, _Fork(pid))

    @classmethod
    def booted(cls, boot: Callable[[int], TemplateProcess]) -> ForkServer:
        """`boot` starts an interpreter that calls `serve_forks` with the descriptor."""
        ours, theirs = socket.socketpair()
        with theirs:
            return cls(ours, boot(theirs.fileno()))

    def is_alive(self) -> bool:
        return self._template.poll() is None

    def close(self) -> None:
        """Ends the template and every process below it."""
        self._close()

    def start(self, asked: Mapping[str, Any], descriptors: Sequence[int] = (), limit_s: float | None = None) -> int:
        """Start a process for this request and return its process id."""
        with self._asking:
            self._count += 1
            number = self._count
            self._send({"start": number, "asked": dict(asked), "descriptors": len(descriptors)}, descriptors)
            while number not in self._started:
                self._note(limit_s)
            pid = self._started.pop(number)
            for other in self._started.values():  # started for a caller that was interrupted and does not know the pid
                self._send({"signal": signal.SIGKILL, "pid": other})
            self._started.clear()
            return pid

    def wait(self, pid: int, limit_s: float) -> int | None:
        """Wait until it ends or stops itself: the exit code, negative for a signal, or PAUSED. None: timeout."""
        ends_s = time.monotonic() + limit_s
        while True:
            with self._asking, suppress(TimeoutError):
                while not self._codes.get(pid):
                    self._note(0)
            if told := self._codes.get(pid):
                code = told.pop(0)
                if code != PAUSED:
                    del self._codes[pid]
                return code
            if (left_s := ends_s - time.monotonic()) <= 0:
                return None
            readable([self._line.fileno()], min(left_s, _POLL_S))  # another thread may read the answer

    def wait_for_end(self, pid: int, limit_s: float) -> int | None:
        """Like `wait`, but ignores stops, which a debugger or Ctrl-Z may cause."""
        ends_s = time.monotonic() + limit_s
        while (code := self.wait(pid, ends_s - time.monotonic())) == PAUSED:
            pass
        return code

    def signal(self, pid: int, which: int) -> None:
        """Signal the process and its session. The template checks that it still runs, since its pid may have been reused."""
        with self._asking, suppress(ForkServerGone):
            self._send({"signal": which, "pid": pid})

    def _send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._line, [json.dumps(message).encode() + b"\n"], list(descriptors))
        except OSError:
            raise self._gone() from None

    def _gone(self) -> ForkServerGone:
        _wait(self._template, _END_S)
        return ForkServerGone(exit_words(self._template.poll(), limit_s=_END_S))

    def _note(self, limit_s: float | None) -> None:
        try:
            told = self._messages.receive(limit_s)
        except EOFError:
            raise self._gone() from None
        if "started" in told:
            self._started[told["started"]] = told["pid"]
        else:
            self._codes.setdefault(told["pid"], []).append(told["code"])


def _close(line: socket.socket, template: TemplateProcess) -> None:
    line.close()
    while not _wait(template, _END_S):
        template.kill()


def _wait(template: TemplateProcess, limit_s: float) -> bool:
    """Whether it ended in time."""
    until = time.monotonic() + limit_s
    while template.poll() is None and time.monotonic() < until:
        time.sleep(0.001)
    return template.poll() is not None


class _Fork:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
            except ChildProcessError:  # we are in a fork of the owner
                self._code = 0
        return self._code

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


def _be_template(line: socket.socket, work: Work) -> NoReturn:
    code = 1
    try:
        os.setsid()  # Ctrl-C must reach only the user's process, which then ends this one
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        serve_forks(line.detach(), work)
        code = 0
    finally:
        os._exit(code)


def serve_forks(descriptor: int, work: Work) -> None:
    """Main loop of the template, until the owner closes the connection or dies."""
    _Template(descriptor, work).serve()


class _Template:
    def __init__(self, descriptor: int, work: Work) -> None:
        self._work = work
        self._line = socket.socket(fileno=descriptor)
        self._buffer = b""
        self._descriptors: list[int] = []
        self._live: set[int] = set()
        self._owner = os.getppid()
        self._wakeups = Wakeups()
        adopt_orphans()

    def serve(self) -> None:
        try:
            while os.getppid() == self._owner:  # a fork of the owner may keep the connection open
                ready = readable([self._line.fileno(), self._wakeups.descriptor], _LOOK_S)
                self._wakeups.forget()
                self._tell_who_ended()
                if self._line.fileno() in ready and not self._serve_questions():
                    break
        except ConnectionError:
            pass  # the owner is gone
        finally:
            for pid in self._live:
                end_group(pid)
            end_descendants()

    def _serve_questions(self) -> bool:
        """False when the connection is closed."""
        piece, descriptors, _, _ = socket.recv_fds(self._line, 1 << 16, _MOST_DESCRIPTORS)
        if not piece:
            return False
        self._descriptors += descriptors
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            question = json.loads(line)
            if "start" in question:
                self._start(question)
            elif question["pid"] in self._live:
                _signal_session(question["pid"], question["signal"])
        return True

    def _start(self, question: Mapping[str, Any]) -> None:
        count = question["descriptors"]
        passed, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        pid = os.fork()
        if not pid:
            self._be_forked(question["asked"], passed)
        for one in passed:
            os.close(one)
        self._live.add(pid)
        self._tell({"started": question["start"], "pid": pid})

    def _be_forked(self, asked: Mapping[str, Any], passed: Sequence[int]) -> NoReturn:
        code = 1
        try:
            self._line.close()
            self._wakeups.close()
            for other in self._descriptors:
                os.close(other)
            os.setsid()  # its own session, so that it and its children can be signalled together
            code = self._work(asked, passed)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)

    def _tell_who_ended(self) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
                pid, status = found
                if pid not in self._live:
                    continue  # adopted
                paused = os.WIFSTOPPED(status)
                if not paused:
                    self._live.discard(pid)
                    _end_session(pid)
                self._tell({"pid": pid, "code": PAUSED if paused else os.waitstatus_to_exitcode(status)})

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._line.sendall(json.dumps(message).encode() + b"\n")


def _signal_session(leader: int, which: int) -> None:
    try:
        os.killpg(leader, which)
    except ProcessLookupError:  # forked a moment ago and not yet a session leader
        os.kill(leader, which)


def _end_session(leader: int) -> None:
    """Kill what an ended process left running. Found by parent, because its session id may have been reused."""
    if sys.platform != "linux":
        end_group(leader)
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                end_group(os.getpgid(pid))
