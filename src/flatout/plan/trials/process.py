"""Trials in a separate process: it may run out of memory, crash in a compiler or hang, and the run continues.

One process serves many trials, so that only the first pays for its start; after a failure a new one is started.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from flatout.base.exits import exit_words
from flatout.base.messages import BadMessage, Questions
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.reports import CRASHED, FAILED, HUNG, Ask, Losses, PeakMemory, TrialReport

_LAST_S = 5.0
TRIAL_LIMIT_S = 180.0


class TrialProcess:
    """`command` starts a process that calls `serve`; two file descriptors, for reading and writing, are appended to it.

    `told` is its stdin: a file without a name, so that nothing is left behind however this process ends.
    """

    def __init__(self, command: Sequence[str], limit_s: float = TRIAL_LIMIT_S, told: str = "") -> None:
        self._command, self._limit_s, self._told = list(command), limit_s, told
        self._running: _Running | None = None
        self._is_new = False  # it has not replied yet

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def begin(self) -> None:
        """Start before the first question, so that it does not wait for imports."""
        if self._running is None:
            self._running = _Running(self._command, self._told)
            self._is_new = True

    def attempt(self, ask: Ask) -> TrialReport:
        began_s = time.monotonic()
        answer, failure, why = self._asked({"attempt": asdict(ask)}, ask.patience_s)
        if answer is None:
            return TrialReport(dict(ask.settings), failure, why, took_s=time.monotonic() - began_s)
        return TrialReport.from_dict(answer)

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Losses:
        began_s = time.monotonic()
        question = {"settings": dict(settings), "steps": steps, "seed": seed, "after": after}
        answer, failure, why = self._asked({"losses": question})
        if answer is None:
            return Losses(dict(settings), (), failure, why, time.monotonic() - began_s)
        return Losses.from_dict(answer)

    def held(self, settings: Mapping[str, Any], rows: int) -> PeakMemory:
        answer, failure, why = self._asked({"held": {"settings": dict(settings), "rows": rows}})
        return PeakMemory(rows, 0, 0, failure, why) if answer is None else PeakMemory(**answer)

    def _asked(self, question: Mapping[str, Any], patience_s: float | None = None) -> tuple[dict[str, Any] | None, str, str]:
        limit_s = self._limit_s if patience_s is None else min(patience_s, self._limit_s)
        self.begin()
        assert self._running is not None
        if self._is_new:
            limit_s = self._limit_s  # it must start first, and may read data
        self._is_new = False
        try:
            answer = self._running.ask(question, limit_s)
        except TimeoutError:
            why = exit_words(None, self._running.child.printed(), limit_s)
            self._stop()
            return None, HUNG, f"the trial {why}"
        except EOFError as closed:
            has_ended = self._running.child.wait(_LAST_S) is not None
            why = (
                f"the trial {self._running.child.how_it_ended()}" if has_ended else f"the trial's reply can't be read: {closed}"
            )
            self._stop()
            return None, CRASHED, why
        except BadMessage as bad:
            self._stop()
            return None, CRASHED, f"the trial's reply can't be read: {bad}"
        except BaseException:  # on an interrupt too, leave no process behind
            self._stop()
            raise
        if answer.pop("lost", False):  # the device is lost: the next trial gets a new process
            self._stop()
        return (None, FAILED, answer["error"]) if "error" in answer else (answer, "", "")

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


class _Running:
    def __init__(self, command: Sequence[str], told: str) -> None:
        from flatout.base.child import Child  # not needed in a run without trials

        self._questions = Questions()
        ends = self._questions.asked_from, self._questions.answered_to
        try:
            self.child = Child([*command, *map(str, ends)], given=told, passed=ends)
        except BaseException:
            self._questions.close()
            raise
        finally:
            self._questions.hand_over()

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        self._questions.ask(question)
        return self._questions.answer(limit_s)

    def stop(self) -> None:
        self.child.end()
        self._questions.close()


def serve(make_bench: Callable[[], Bench], asked_from: int, answered_to: int) -> None:
    """Answer questions until the input closes. Nothing is built before the first question."""
    bench: Bench | None = None
    with os.fdopen(asked_from) as questions, os.fdopen(answered_to, "w") as answers:
        try:
            for line in questions:
                bench = bench or make_bench()
                answers.write(json.dumps({**_answer(bench, json.loads(line)), "lost": bench.is_lost}) + "\n")
                answers.flush()
        finally:
            if bench is not None:
                bench.close()


def _answer(bench: Bench, question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if "attempt" in question:
            return bench.attempt(Ask(**question["attempt"])).to_dict()
        if "held" in question:
            return asdict(bench.held(**question["held"]))
        return asdict(bench.losses(**question["losses"]))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
