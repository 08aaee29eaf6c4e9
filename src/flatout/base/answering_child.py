"""A child process that answers questions, one after another: it may run out of memory, crash or hang, and the asker goes on.

One process answers many questions, so that only the first pays for its start; after a failure a new one is started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flatout.base.child import Child
from flatout.base.exits import exit_words
from flatout.base.messages import BadMessage, Questions

FAILED, CRASHED, HUNG = "failed", "crashed", "hung"
GONE = "gone"  # nobody answers from there any more: a lost machine
_LAST_S = 5.0


class NoAnswer(Exception):
    """`kind` is one of the words above; the message says what happened."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class AnsweringProcess(Protocol):
    """A `Child` or a `ForkedChild`."""

    @property
    def pid(self) -> int: ...

    def wait(self, limit_s: float | None = None) -> int | None: ...
    def end(self) -> None: ...
    def printed(self) -> str: ...
    def how_it_ended(self) -> str: ...


Start = Callable[[tuple[int, int]], AnsweringProcess]
"""Starts a process that calls `answer_questions` with copies of two descriptors, for reading and writing."""


def by_command(command: Sequence[str], told: str = "") -> Start:
    """The descriptors are appended to the command. `told` is its stdin: a file without a name, so that nothing is left behind
    however this process ends."""
    return lambda ends: Child([*command, *map(str, ends)], given=told, passed=ends)


class AnsweringChild:
    """`called`: its name in messages."""

    def __init__(self, start: Start, start_limit_s: float, called: str = "the trial") -> None:
        self._start, self._start_limit_s, self._called = start, start_limit_s, called
        self._running: _Running | None = None
        self._is_new = False  # it has not replied yet

    def begin(self) -> None:
        """Start before the first question, so that it does not wait for imports."""
        if self._running is None:
            self._running = _Running(self._start)
            self._is_new = True

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        """The answer, or `NoAnswer`. `limit_s`: then it counts as hung; the first question has time for the start as well."""
        self.begin()
        running = self._running
        assert running is not None
        if self._is_new and limit_s is not None:
            limit_s = max(limit_s, self._start_limit_s)
        self._is_new = False
        try:
            answer = running.ask(question, limit_s)
        except TimeoutError:
            why = exit_words(None, running.child.printed(), limit_s or 0.0)
            self.stop()
            raise NoAnswer(HUNG, f"{self._called} {why}") from None
        except EOFError as closed:
            has_ended = running.child.wait(_LAST_S) is not None
            how = running.child.how_it_ended() if has_ended else ""
            self.stop()
            why = f"{self._called} {how}" if has_ended else f"{self._called}'s reply can't be read: {closed}"
            raise NoAnswer(CRASHED, why) from None
        except BadMessage as bad:
            self.stop()
            raise NoAnswer(CRASHED, f"{self._called}'s reply can't be read: {bad}") from None
        except BaseException:  # on an interrupt too, leave no process behind
            self.stop()
            raise
        if answer.pop("lost", False):  # the device is lost: the next question gets a new process
            self.stop()
        if "error" in answer:
            raise NoAnswer(FAILED, answer["error"])
        return answer

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


class _Running:
    def __init__(self, start: Start) -> None:
        self._questions = Questions()
        try:
            self.child = start((self._questions.asked_from, self._questions.answered_to))
        except BaseException:
            self._questions.close()
            raise
        finally:
            self._questions.hand_over()

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        self._questions.ask(question)
        return self._questions.answer(limit_s)

    def stop(self) -> None:
        self.child.end()
        self._questions.close()


def answer_questions(answer: Callable[[dict[str, Any]], Mapping[str, Any]], asked_from: int, answered_to: int) -> None:
    """The child's side, until the asker closes the pipe. An error of `answer` is an answer too."""
    with os.fdopen(asked_from) as questions, os.fdopen(answered_to, "w") as answers:
        for line in questions:
            answers.write(json.dumps(_answered(answer, json.loads(line))) + "\n")
            answers.flush()


def _answered(answer: Callable[[dict[str, Any]], Mapping[str, Any]], question: dict[str, Any]) -> Mapping[str, Any]:
    try:
        return answer(question)
    except Exception as error:
        return error_answer(error)


def error_answer(error: Exception) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
