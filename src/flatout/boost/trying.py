"""Trials, each in a fresh process that may crash or hang without harm."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flatout.base.units import show_seconds
from flatout.boost.forks import Forks
from flatout.boost.trial import Asked, Told
from flatout.doctor.script import Script

HUNG, CRASHED = "hung", "crashed"
_FIRST_LIMIT_S = 600.0
_COMPILE_S = 240.0
_LAST_CHARACTERS = 4000


class Trials:
    def __init__(
        self,
        forks: Forks,
        script: Script,
        folder: Path,
        steps: int,
        seed: int = 0,
        evaluates: Sequence[tuple[str, bool]] = (),
    ) -> None:
        self._forks, self._script, self._folder, self._evaluates = forks, script, folder, tuple(evaluates)
        self.steps, self._seed = steps, seed
        self._count = 0
        self._reference_s: float | None = None
        self.reference_file = folder / "reference.pt"

    def attempt(
        self,
        remedies: Sequence[tuple[str, Any]],
        *,
        keep: bool = False,
        slow_s: float | None = None,
        exact: bool = False,
    ) -> Told:
        """`keep`: this one is the reference that later ones are held against."""
        self._count += 1
        place = self._folder / f"t{self._count}"
        (place / "scratch").mkdir(parents=True)
        asked = Asked(
            self._script.name,
            self._script.arguments,
            self._script.as_module,
            tuple(remedies),
            self.steps,
            self._seed,
            str(place / "scratch"),
            str(place / "answer.json"),
            None if keep else str(self.reference_file),
            str(self.reference_file) if keep else None,
            slow_s,
            exact,
            self._evaluates,
        )
        question = place / "question.json"
        question.write_text(json.dumps(asdict(asked)))
        limit_s = _FIRST_LIMIT_S if self._reference_s is None else 3 * self._reference_s + _COMPILE_S
        began_s = time.monotonic()
        told = self._run(question, Path(asked.answer), limit_s)
        if keep and not told.failure:
            self._reference_s = time.monotonic() - began_s
        return told

    def _run(self, question: Path, answer: Path, limit_s: float) -> Told:
        words = question.with_suffix(".txt")
        began_s = time.monotonic()
        code = self._forks.run("try", question, words, limit_s)
        took_s = time.monotonic() - began_s
        if code is None:
            return Told(HUNG, f"no answer within {show_seconds(limit_s)}", took_s=took_s)
        if answer.exists():
            return Told.from_dict(json.loads(answer.read_text()))
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return Told(CRASHED, f"the trial {how}{last_words(words)}", took_s=took_s)


def last_words(words: Path) -> str:
    """The last line that it wrote."""
    text = words.read_text(errors="replace")[-_LAST_CHARACTERS:] if words.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""
