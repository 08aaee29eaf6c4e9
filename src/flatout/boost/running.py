"""The script to its end with what was kept. If it fails with it or its losses leave the band, it is started again, plain."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flatout.base.child import Child, Printed
from flatout.base.exits import exit_words
from flatout.boost.hooks import Hooks
from flatout.boost.pace import ScriptPace
from flatout.boost.remedies.all import REMEDIES
from flatout.boost.step_recorder import StepRecorder
from flatout.doctor.patches import Patches
from flatout.doctor.script import Script, run_script

LEFT = 86  # the exit code of a run that left its band
_MARGIN = 0.5
_EVERY, _IN_A_ROW = 250, 2  # steps between two looks at whether a loss is a number; so many that are none


@dataclass(frozen=True)
class BoostedRun:
    """`highest`: no loss of the reference's steps was above it; `steps` of them were seen."""

    script: str
    arguments: tuple[str, ...]
    as_module: bool
    remedies: tuple[tuple[str, Any], ...]
    steps: int
    highest: float
    told: str  # a file that says why it left
    ran: str  # a file that says how fast it went

    @classmethod
    def read(cls, path: Path) -> BoostedRun:
        written = json.loads(path.read_text())
        remedies = tuple((name, value) for name, value in written["remedies"])
        return cls(**{**written, "remedies": remedies, "arguments": tuple(written["arguments"])})


def run_with(kept: BoostedRun) -> int:
    """In the process of the script."""
    patches, hooks, pace = Patches(), Hooks(), ScriptPace()
    not_finite = 0

    def window_over() -> None:
        losses = recording.losses()
        late = losses[len(losses) // 2 :]
        mean = sum(late) / max(len(late), 1)
        bound = kept.highest + _MARGIN * abs(kept.highest)
        if late and (not math.isfinite(mean) or mean > bound):
            leave(f"its loss is {mean:.4g} after {len(losses)} steps; the plain script's was never above {kept.highest:.4g}")

    def step_over(step: int) -> None:
        nonlocal not_finite
        pace.step_over()
        if step % _EVERY == 0 and recording.last_loss is not None:
            not_finite = 0 if bool(recording.last_loss.isfinite().all()) else not_finite + 1
            if not_finite == _IN_A_ROW:
                leave(f"its loss was not finite at steps {step - _EVERY} and {step}")

    def leave(why: str) -> None:
        Path(kept.told).write_text(why)
        os._exit(LEFT)

    recording = StepRecorder(kept.steps, window_over, step_over)
    recording.keeps_dropout()
    for name, value in kept.remedies:
        REMEDIES[name].apply(value, hooks)
    recording.install(patches, hooks)
    hooks.install()
    ending = run_script(Script(kept.script, kept.arguments, kept.as_module))
    if (ran := pace.ran()) is not None:
        ran.write(Path(kept.ran))
    if ending.error is not None:
        Path(kept.told).write_text(f"{type(ending.error).__name__}: {str(ending.error).strip().partition(chr(10))[0][:300]}")
    return ending.exit_code


_HANDED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_to_its_end(
    command: Sequence[str], plain: Sequence[str], kept: BoostedRun, folder: Path, say: Callable[[str], None]
) -> tuple[int, str]:
    """The exit code, and why it was started again plain, or "". stdin, stdout and signals are the script's own."""
    question = folder / "kept.json"
    question.write_text(json.dumps(asdict(kept)))
    code = waited_for([*command, str(question)])
    told = Path(kept.told)
    crashed = code > 128 and code - 128 not in (signal.SIGINT, signal.SIGKILL, *_HANDED_ON)
    if not told.exists() and not crashed:
        return code, ""
    why = told.read_text() if told.exists() else f"it {exit_words(128 - code)}"
    say(f"with the remedies it did not go on ({why}); it is started again without them")
    return waited_for(plain), why


def waited_for(command: Sequence[str]) -> int:
    """The exit code. Ctrl-C goes to both of us, and what a scheduler sends to this process is handed on: the script decides
    what it means, and may have to save its weights."""
    with Child(command, foreground=True, output=Printed.SHOWN, errors=Printed.SHOWN) as child:
        before = {one: signal.signal(one, lambda number, _: child.signal(number)) for one in _HANDED_ON}
        before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            code = child.wait()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
    assert code is not None
    return code if code >= 0 else 128 - code
