"""One trial, in a process of its own: the script with some remedies, from one seed, for some steps, into a scratch folder.

The process ends itself at the end of its last step: nothing of the script runs after that, not even what it does at its end.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.base.keeper import end_with_parent
from flatout.boost.forks import pause
from flatout.boost.hooks import Hooks
from flatout.boost.placing import begin_on
from flatout.boost.protection import protecting
from flatout.boost.remedies.all import PRECISIONS, REMEDIES
from flatout.boost.step_recorder import StepRecorder
from flatout.doctor.patches import Patches
from flatout.doctor.script import Script, run_script
from flatout.measure.differences import StepSnapshot
from flatout.measure.proof import check_step

WARM_UP = 8  # steps that are not timed; the first of them compile
SLOWER, _SLOW = "slower", 3.0
_LOOKED_AT = (WARM_UP + 3, WARM_UP + 7)  # steps: to look is to wait for the device, which costs time


@dataclass(frozen=True)
class TrialRequest:
    script: str
    arguments: tuple[str, ...]
    as_module: bool
    remedies: tuple[tuple[str, Any], ...]
    steps: int
    seed: int
    scratch: str
    answer: str
    protection: str
    reference: str | None = None  # the first step of the plain script, to be held against
    keep: str | None = None  # where to keep the own one
    slow_s: float | None = None  # a step of the reference: three times that, after the warm-up, and the trial is over
    exact: bool = False  # deterministic kernels and no dropout: for its losses, not for its speed
    evaluates: tuple[tuple[str, bool], ...] = ()  # lines, and whether the model is in training mode there
    turn_s: float = 0.0  # it pauses after about so long, for another trial to have its turn; 0: never
    least: int = 1  # steps of a turn
    filling: int = 0  # the first of a turn, which are not timed: the host gets ahead of the device in them
    losses: int | None = None  # of so many steps; None: of all
    patched: tuple[tuple[str, str], ...] = ()  # files and their text with the remedies written into them

    @property
    def turns(self) -> Path:
        """Of each turn until now a line: seconds of a step, and how many steps there were in all."""
        return Path(self.answer).with_name("turns.txt")

    @property
    def until(self) -> Path:
        """The step that a turn ends with, so that both trials make the same ones in it. Where it isn't there, the clock ends
        the turn."""
        return Path(self.answer).with_name("until")

    @property
    def enough(self) -> Path:
        """Once this file is there, the turn that was the last one is the last."""
        return Path(self.answer).with_name("enough")

    def turns_until_now(self) -> list[tuple[float, int]]:
        lines = (line.split() for line in self.turns.read_text().splitlines())
        return [(float(step_s), int(step)) for step_s, step in lines]

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> TrialRequest:
        remedies = tuple((name, value) for name, value in written["remedies"])
        evaluates = tuple((line, training) for line, training in written["evaluates"])
        patched = tuple((file, text) for file, text in written["patched"])
        more = {"remedies": remedies, "arguments": tuple(written["arguments"]), "evaluates": evaluates, "patched": patched}
        return cls(**{**written, **more})

    @property
    def precision(self) -> str:
        """How far the first step may be from the reference's."""
        allowed = [REMEDIES[name].precision for name, _ in self.remedies]
        return max(allowed, key=PRECISIONS.index, default="fp32")


@dataclass(frozen=True)
class Told:
    failure: str = ""
    why: str = ""
    steps_s: tuple[float, ...] = ()  # by turns: the mean of each turn
    evaluations_s: tuple[float, ...] = ()  # calls of models between steps that do not train
    against_s: tuple[float, ...] = ()  # by turns: what it was held against, in the same minute
    against_evaluations_s: tuple[float, ...] = ()
    against_first_s: float | None = None
    steps_done: int = 0
    processes: int = 1  # whose times these are
    losses: tuple[float, ...] = ()
    check: Mapping[str, Any] | None = None
    first_s: float | None = None
    peak_bytes: int | None = None
    memory_share: float | None = None  # of the device's
    device: str = "cpu"
    took_s: float = 0.0
    notes: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Told:
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
        return cls(**values)


class _Turn:
    """Of a trial that pauses: the one that it is in, and what those before it took."""

    def __init__(self, asked: TrialRequest) -> None:
        self._asked = asked
        self.first = 0  # the last step before it
        self._last: int | None = None
        self._began_s = 0.0
        self.means_s: list[float] = []  # of a step in each

    def begins(self, step: int) -> None:
        until = self._asked.until
        self._last = int(until.read_text()) if until.exists() else None
        self.first, self._began_s = step, time.perf_counter()

    def is_over(self, step: int) -> bool:
        if self._last is not None:
            return step >= self._last
        steps = self._asked.least + self._asked.filling
        return step - self.first >= steps and time.perf_counter() - self._began_s >= self._asked.turn_s

    def mean_s(self, steps_s: Sequence[float]) -> float:
        """On a device without the first quarter: another process had it, and the host is not ahead of it yet."""
        timed = steps_s[max(self._asked.filling, len(steps_s) // 4) if self._asked.filling else 0 :]
        return sum(timed) / len(timed)


def attempt(asked: TrialRequest) -> None:
    """Does not return: it ends the process."""
    began_s = time.monotonic()
    patches, hooks = Patches(), Hooks()
    protecting.enter(asked.protection, Path(asked.scratch), [Path(asked.answer).parent.parent], patches)
    end_with_parent()  # other rights have made it forget that
    turn, turns = _Turn(asked), asked.turns.open("w")

    def done() -> None:
        restore()
        answer(_measured(asked, recording, turn.means_s if asked.turn_s else None, began_s))

    def restore() -> None:
        patches.restore()
        hooks.patches.restore()

    def step_over(step: int) -> None:
        if asked.slow_s is not None and step in _LOOKED_AT:
            taken = recording.steps_s(WARM_UP)
            if taken and min(taken) > _SLOW * asked.slow_s:
                why = f"steps of {min(taken):.3g} s, more than {_SLOW:g} times the reference's"
                answer(Told(SLOWER, why, took_s=time.monotonic() - began_s))
        if asked.turn_s and step > WARM_UP and turn.is_over(step):
            recording.paused_by(turn_over)

    def turn_over() -> None:
        if turn.first:
            turn.means_s.append(turn.mean_s(recording.steps_s(turn.first - 1)))
            print(turn.means_s[-1], recording.steps_done, file=turns, flush=True)
        pause()
        if asked.enough.exists():
            done()
        if recording.device.type != "cpu":
            begin_on(len(turn.means_s))
        turn.begins(recording.steps_done)

    def answer(told: Told) -> None:
        restore()
        Path(asked.answer + ".part").write_text(json.dumps(asdict(told)))
        os.replace(asked.answer + ".part", asked.answer)
        sys.stdout.flush()
        os._exit(0)

    recording = StepRecorder(asked.steps, done, step_over, asked.evaluates, asked.losses)
    if asked.exact:
        recording.leaves_dropout_off()
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
    for file, text in asked.patched:
        with open(file, "w", newline="") as patched:
            patched.write(text)
    for name, value in asked.remedies if not asked.patched else ():
        REMEDIES[name].apply(value, hooks)
    recording.install(patches, hooks)
    hooks.install()
    random.seed(asked.seed)
    np.random.seed(asked.seed)
    torch.manual_seed(asked.seed)
    ending = run_script(Script(asked.script, asked.arguments, asked.as_module))
    if recording.steps_done > WARM_UP + 5:
        done()  # a short script: what there is has to do
    error = "" if ending.error is None else _in_one_line(ending.error)
    few = f"the script ended with code {ending.exit_code} after {recording.steps_done} steps"
    answer(Told("failed" if error else "short", error or few, took_s=time.monotonic() - began_s))


def _measured(asked: TrialRequest, recording: StepRecorder, turns_s: Sequence[float] | None, began_s: float) -> Told:
    snapshot = recording.snapshot()
    if asked.keep is not None:
        torch.save({name: _to_cpu(value) for name, value in vars(snapshot).items()}, asked.keep)
    check = None
    if asked.reference is not None:
        kept = torch.load(asked.reference, weights_only=True, map_location=recording.device)
        found = check_step(StepSnapshot(**{**kept, "losses": tuple(kept["losses"])}), snapshot, asked.precision)
        check = asdict(found)
    on_device = recording.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_device else None
    share = torch.cuda.max_memory_reserved() / torch.cuda.mem_get_info()[1] if on_device else None
    return Told(
        steps_s=tuple(recording.steps_s(WARM_UP) if turns_s is None else turns_s),
        steps_done=recording.steps_done,
        evaluations_s=tuple(recording.evaluations_s()),
        losses=tuple(recording.losses()),
        check=check,
        first_s=recording.first_s,
        peak_bytes=peak,
        memory_share=share,
        device=recording.device.type,
        took_s=time.monotonic() - began_s,
    )


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: None if tensor is None else tensor.cpu() for name, tensor in value.items()}
    return list(value) if isinstance(value, tuple) else value
