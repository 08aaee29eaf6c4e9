"""Runs the script to its end with the kept remedies. If it fails or its loss is too high, it is restarted without them."""

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

LEFT = 86  # exit code of a run stopped because of its loss
_MARGIN = 0.5
_EVERY, _IN_A_ROW = 250, 2  # check every so many steps that the loss is finite; stop after this many failed checks


@dataclass(frozen=True)
class BoostedRun:
    """`highest`: the unmodified script's highest loss in its first `steps` steps."""

    script: str
    arguments: tuple[str, ...]
    as_module: bool
    remedies: tuple[tuple[str, Any], ...]
    steps: int
    highest: float
    told: str  # file for the reason of a failure
    ran: str  # file for the measured speed

    @property
    def words(self) -> str:
        return str(Script(self.script, self.arguments, self.as_module))

    @classmethod
    def read(cls, path: Path) -> BoostedRun:
        written = json.loads(path.read_text())
        remedies = tuple((name, value) for name, value in written["remedies"])
        return cls(**{**written, "remedies": remedies, "arguments": tuple(written["arguments"])})


def run_with(kept: BoostedRun) -> int:
    """Called in the script's process."""
    patches, hooks, pace = Patches(), Hooks(), ScriptPace()
    not_finite = 0

    def window_over() -> None:
        losses = recording.losses()
        late = losses[len(losses) // 2 :]
        mean = sum(late) / max(len(late), 1)
        bound = kept.highest + _MARGIN * abs(kept.highest)
        if late and (not math.isfinite(mean) or mean > bound):
            leave(f"its loss is {mean:.4g} after {len(losses)} steps; unmodified it was never above {kept.highest:.4g}")

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
    command: Sequence[str], plain: Sequence[str] | None, kept: BoostedRun, folder: Path, say: Callable[[str], None]
) -> tuple[int, str]:
    """The exit code, and why the remedies failed, or "": then the script is restarted without them, by the command `plain`, if
    there is one. stdin, stdout and signals go to the script."""
    question = folder / "kept.json"
    question.write_text(json.dumps(asdict(kept)))
    code = waited_for([*command, str(question)])
    told = Path(kept.told)
    crashed = code > 128 and code - 128 not in (signal.SIGINT, signal.SIGKILL, *_HANDED_ON)
    if not told.exists() and not crashed:
        return code, ""
    why = told.read_text() if told.exists() else f"it {exit_words(128 - code)}"
    if plain is None:
        say(f"the script failed with the remedies ({why}); start it without them: python {kept.words}")
        return code, why
    say(f"the script failed with the remedies ({why}); restarting it without them")
    return waited_for(plain), why


def waited_for(command: Sequence[str]) -> int:
    """The exit code. Ctrl-C reaches both processes, and signals of a scheduler are passed on: the script decides how to
    handle them and may need to save its weights."""
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
