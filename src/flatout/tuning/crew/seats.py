"""Where the processes of a crew train: a device of this machine, or one that somebody else looks after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flatout.base.answering_child import FAILED, NoAnswer
from flatout.base.errors import FlatoutError
from flatout.tuning.crew.worker import TrialWorker


class CrewMember(Protocol):
    """Answers the questions of `TrialWorker`."""

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]: ...
    def stop(self) -> None: ...


@dataclass(frozen=True)
class CrewSeat:
    """`name`: the device, and its machine if that is another one. `make` starts a process for it."""

    name: str
    make: Callable[[], CrewMember]
    is_here: bool = True


def asked_of(member: CrewMember, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
    """The answer, or why there is none, as plain data for another machine. `answer_in` reads it there."""
    try:
        return {"answer": member.ask(question, limit_s)}
    except NoAnswer as none:
        return {"none": [none.kind, str(none)]}


def answer_in(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    if "none" in found:
        kind, why = found["none"]
        raise NoAnswer(kind, f"{name}: {why}")
    answer: dict[str, Any] = found["answer"]
    return answer


class Here:
    """Without a process of its own: for models and data that exist only in this one."""

    def __init__(self, worker: TrialWorker) -> None:
        self._worker = worker

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        try:
            return self._worker.answer(question)
        except FlatoutError:
            raise
        except Exception as error:
            raise NoAnswer(FAILED, f"{type(error).__name__}: {error}") from error

    def stop(self) -> None:
        self._worker.close()
