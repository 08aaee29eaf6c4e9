"""Trials in a separate process: it may run out of memory, crash in a compiler or hang, and the run continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flatout.plan.trials.bench import Bench
from flatout.plan.trials.reports import Ask, Losses, PeakMemory, TrialReport

if TYPE_CHECKING:
    from flatout.base.answering_child import AnsweringChild

TRIAL_LIMIT_S = 180.0


class TrialProcess:
    """`command` starts a process that calls `serve`; two file descriptors, for reading and writing, are appended to it.

    `told` is its stdin: a file without a name, so that nothing is left behind however this process ends.
    """

    def __init__(self, command: Sequence[str], limit_s: float = TRIAL_LIMIT_S, told: str = "") -> None:
        self._command, self._limit_s, self._told = list(command), limit_s, told
        self._child: AnsweringChild | None = None

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._child is not None:
            self._child.stop()

    def begin(self) -> None:
        """Start before the first question, so that it does not wait for imports."""
        self._answering().begin()

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
        from flatout.base.answering_child import NoAnswer

        try:
            return (
                self._answering().ask(question, self._limit_s if patience_s is None else min(patience_s, self._limit_s)),
                "",
                "",
            )
        except NoAnswer as none:
            return None, none.kind, str(none)

    def _answering(self) -> AnsweringChild:
        if self._child is None:
            from flatout.base.answering_child import AnsweringChild, by_command  # not needed in a run without trials

            self._child = AnsweringChild(by_command(self._command, self._told), self._limit_s)
        return self._child


def serve(make_bench: Callable[[], Bench], asked_from: int, answered_to: int) -> None:
    """Answer questions until the input closes. Nothing is built before the first question."""
    from flatout.base.answering_child import answer_questions, error_answer

    made: list[Bench] = []

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        if not made:
            made.append(make_bench())
        try:
            found = _answer(made[0], question)
        except Exception as error:
            found = error_answer(error)
        return {**found, "lost": made[0].is_lost}

    try:
        answer_questions(answer, asked_from, answered_to)
    finally:
        for bench in made:
            bench.close()


def _answer(bench: Bench, question: Mapping[str, Any]) -> dict[str, Any]:
    if "attempt" in question:
        return bench.attempt(Ask(**question["attempt"])).to_dict()
    if "held" in question:
        return asdict(bench.held(**question["held"]))
    return asdict(bench.losses(**question["losses"]))
