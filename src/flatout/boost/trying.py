"""Trials, each in a fresh process that may crash or hang without harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from flatout.base.units import show_seconds
from flatout.boost.trial import Asked, Told
from flatout.doctor.script import Script

FAILED, HUNG, CRASHED = "failed", "hung", "crashed"
_FIRST_LIMIT_S = 600.0
_COMPILE_S = 240.0
_LAST_BYTES = 4000


class Trials:
    """`command` starts a process that reads the question at its end and calls `attempt`."""

    def __init__(self, command: Sequence[str], script: Script, folder: Path, steps: int, seed: int = 0) -> None:
        self._command, self._script, self._folder = list(command), script, folder
        self._steps, self._seed = steps, seed
        self._count = 0
        self._reference_s: float | None = None
        self.reference_file = folder / "reference.pt"

    def attempt(self, remedies: Sequence[tuple[str, Any]], *, keep: bool = False, slow_s: float | None = None) -> Told:
        """`keep`: this one is the reference that later ones are held against."""
        self._count += 1
        place = self._folder / f"t{self._count}"
        (place / "scratch").mkdir(parents=True)
        asked = Asked(
            self._script.name,
            self._script.arguments,
            self._script.as_module,
            tuple(remedies),
            self._steps,
            self._seed,
            str(place / "scratch"),
            str(place / "answer.json"),
            None if keep else str(self.reference_file),
            str(self.reference_file) if keep else None,
            slow_s,
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
        began_s = time.monotonic()
        with tempfile.TemporaryFile() as words:
            process = subprocess.Popen(
                [*self._command, str(question)],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,  # Ctrl-C is for the person's own process, which ends this one
            )
            try:
                code = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                return Told(HUNG, f"no answer within {show_seconds(limit_s)}", took_s=time.monotonic() - began_s)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if answer.exists():
                return Told.from_dict(json.loads(answer.read_text()))
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            return Told(CRASHED, f"the trial {how}{_last_words(words)}", took_s=time.monotonic() - began_s)


def _last_words(words: IO[bytes]) -> str:
    words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = [line.strip() for line in words.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""
