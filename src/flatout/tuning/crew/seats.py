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
