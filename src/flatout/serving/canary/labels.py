"""Labels that arrive after the answers: each counts once, also over restarts."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.serving.canary import tally
from flatout.serving.canary.answer_ids import AnswerIds, NamedAnswer
from flatout.serving.canary.comparable import AnswerKind
from flatout.serving.canary.tally import Array

_MOST = 1_000_000  # remembered, so that a second one is known


@dataclass(frozen=True)
class LabelAnswer:
    """Of one label: the status of HTTP, and why."""

    status: int
    why: str
    counted: bool = False


class CanaryLabels:
    def __init__(self, kind: AnswerKind, ids: AnswerIds, names: Path, known: bool) -> None:
        """`names`: a file with the ids of answers that have a label; `known`: it is of this deployment."""
        self._kind, self._ids, self._names = kind, ids, names
        self._labelled: dict[str, None] = {}
        self._counted: Array = tally.empty((2,))
        if known:
            with suppress(FileNotFoundError):
                self._labelled = dict.fromkeys(names.read_text().split())

    def since(self) -> Array:
        """Counts of both arms since the last call."""
        found, self._counted = self._counted, tally.empty((2,))
        return found

    def take(self, name: Any, label: Any, too_late: str) -> LabelAnswer:
        """`too_late`: why labels don't count any more, or ""."""
        answer = self._ids.read(name) if isinstance(name, str) else None
        if answer is None:
            return LabelAnswer(
                404, "no answer of this deployment has this id; it is the X-Flatout-Id of a request with one row"
            )
        if name in self._labelled:
            return LabelAnswer(409, "this answer has a label already")
        wrong = self._wrong(answer, label)
        if isinstance(wrong, str):
            return LabelAnswer(400, wrong)
        self._remember(name)
        if too_late:
            return LabelAnswer(200, f"too late to count: {too_late}")
        arm = self._counted[answer.arm - 1]
        arm[tally.LABELLED] += 1
        if self._kind.edges is None:
            arm[tally.WRONG] += bool(wrong)
        else:
            arm[tally.MISSES.start + int(tally.step_of(wrong))] += 1
        return LabelAnswer(200, "", counted=True)

    def _remember(self, name: str) -> None:
        self._labelled[name] = None
        if len(self._labelled) > _MOST:
            del self._labelled[next(iter(self._labelled))]
        self._names.parent.mkdir(parents=True, exist_ok=True)
        with self._names.open("a") as file:
            file.write(f"{name}\n")

    def _wrong(self, answer: NamedAnswer, label: Any) -> bool | float | str:
        """Whether the answer was wrong, or the size of its error; a text says what is wrong with the label."""
        kind = self._kind
        if kind.edges is not None:
            if isinstance(label, bool) or not isinstance(label, int | float) or not math.isfinite(label):
                return f"expected a number as the label, got {label!r}"
            return abs(float(label) - answer.prediction) / kind.scale
        if not kind.classes:
            return "answers of this model can't be compared with labels"
        if label in kind.classes:
            return bool(kind.classes.index(label) != int(answer.prediction))
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(kind.classes):
            return label != int(answer.prediction)
        return f"expected one of {', '.join(kind.classes[:10])} as the label, got {label!r}"
