"""One trial in a separate process: the script with some remedies, from a fixed seed, for some steps, in a scratch folder.

The process ends after its last step: no code of the script runs after that, not even its exit handlers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from flatout.base.keeper import end_with_parent
from flatout.boost.compared_steps import ComparedSteps
from flatout.boost.forks import pause
from flatout.boost.hooks import Hooks
from flatout.boost.placing import begin_on
from flatout.boost.protection import protecting
from flatout.boost.remedies.all import PRECISIONS, REMEDIES
from flatout.boost.seeding import seed_everything
from flatout.boost.step_proof import COMPARED_BATCHES, SHAKEN, KeptSteps
from flatout.boost.step_recorder import WARM_UP, StepRecorder
from flatout.doctor.patches import Patches
from flatout.doctor.script import Script, run_script

SLOWER, _SLOW = "slower", 3.0
_LOOKED_AT = (WARM_UP + 3, WARM_UP + 7)  # steps at which to check the speed, which waits for the device


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
    reference: str | None = None  # file with the unmodified script's compared steps
    keep: str | None = None  # file to save this trial's compared steps to
    noise: str | None = None  # file with the differences between unmodified runs, which widen the limits
    places: tuple[int, ...] = (0,)  # numbers of steps after which steps are compared
    repeats: str = ""  # the script is unmodified: measure how far it is from its reference, with the limits of this precision
    shaken: bool = False  # change each weight by as much as rounding to the precision of `repeats` can
    only_compares: bool = False  # end after the last compared step
    part: int = 0  # put the weights back every so many steps; 0: never
    slow_s: float | None = None  # time of an unmodified step: the trial ends if its steps take 3 times as long
    exact: bool = False  # deterministic kernels and no dropout: to compare losses, not speed
    evaluates: tuple[tuple[str, bool], ...] = ()  # lines, and whether the model is in training mode there
    turn_s: float = 0.0  # pause after about this time to let the other trial run; 0: never
    least: int = 1  # fewest timed steps in a turn
    filling: int = 0  # untimed steps at the start of a turn, in which the host gets ahead of the device
    losses: int | None = None  # keep the losses of this many steps; None: of all
    patched: tuple[tuple[str, str], ...] = ()  # patched files and their text

    @property
    def turns(self) -> Path:
        """File with a line for each turn: seconds per step, and total steps so far."""
        return Path(self.answer).with_name("turns.txt")

    @property
    def until(self) -> Path:
        """File with the last step of the turn, so that both trials run the same steps. Without it, the turn ends by time."""
        return Path(self.answer).with_name("until")

    @property
    def enough(self) -> Path:
        """If this file exists, the trial ends before its next turn."""
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
        more["places"] = tuple(written["places"])
        return cls(**{**written, **more})

    @property
    def precision(self) -> str:
        return precision_of(self.remedies)


def precision_of(remedies: Sequence[tuple[str, Any]]) -> str:
    """The lowest precision that the remedies allow for a step."""
    allowed = [REMEDIES[name].precision for name, _ in remedies]
    return max(allowed, key=PRECISIONS.index, default="fp32")


@dataclass(frozen=True)
class Told:
    failure: str = ""
    why: str = ""
    steps_s: tuple[float, ...] = ()  # in alternation: the mean of each turn
    evaluations_s: tuple[float, ...] = ()  # evaluating model calls between steps
    against_s: tuple[float, ...] = ()  # in alternation: times of the baseline
    against_evaluations_s: tuple[float, ...] = ()
    against_first_s: float | None = None
    steps_done: int = 0
    processes: int = 1  # that were timed
    losses: tuple[float, ...] = ()
    check: Mapping[str, Any] | None = None
    repeats: tuple[Mapping[str, Any], ...] = ()  # how far an unmodified run is from the reference, place by place
    first_s: float | None = None
    peak_bytes: int | None = None
    memory_share: float | None = None  # of the device's memory
    device: str = "cpu"
    took_s: float = 0.0
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def differs(self) -> bool:
        """Was it ended because its compared steps are not the same?"""
        return not self.failure and not self.steps_s and self.check is not None and not self.check["passed"]

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Told:
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
        return cls(**values)


class _Turn:
    """The present turn of an alternating trial, and the times of earlier turns."""

    def __init__(self, asked: TrialRequest) -> None:
        self._asked = asked
        self.first = 0  # the last step before the turn
        self._last: int | None = None
        self._began_s = 0.0
        self.means_s: list[float] = []  # mean step time of each turn

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
        """On a device without the first quarter, in which the host is not yet ahead of the device."""
        timed = steps_s[max(self._asked.filling, len(steps_s) // 4) if self._asked.filling else 0 :]
        return sum(timed) / len(timed)


def attempt(asked: TrialRequest) -> None:
    """Runs the trial. Does not return: ends the process."""
    began_s = time.monotonic()
    patches, hooks = Patches(), Hooks()
    protecting.enter(asked.protection, Path(asked.scratch), [Path(asked.answer).parent.parent], patches)
    end_with_parent()  # entering the protection has cleared this setting
    turn, turns = _Turn(asked), asked.turns.open("w")
    is_compared = False

    def done() -> None:
        restore()
        answer(_measured(asked, recording, compared, kept, turn.means_s if asked.turn_s else None, began_s))

    def compare() -> None:
        """A trial that computes something else ends here: how fast it is does not matter."""
        nonlocal is_compared
        is_compared = True
        found = _checked(asked, recording, compared, kept)
        if found is not None and not found["passed"]:
            took_s = time.monotonic() - began_s
            answer(Told(check=found, steps_done=recording.steps_done, device=recording.device.type, took_s=took_s))

    def restore() -> None:
        patches.restore()
        hooks.patches.restore()

    def step_over(step: int) -> None:
        if asked.slow_s is not None and step in _LOOKED_AT:
            taken = recording.steps_s(WARM_UP)
            if taken and min(taken) > _SLOW * asked.slow_s:
                why = f"steps take {min(taken):.3g} s, more than {_SLOW:g} times as long as unmodified"
                answer(Told(SLOWER, why, took_s=time.monotonic() - began_s))
        if asked.only_compares and not recording.is_comparing:
            done()
        if not is_compared and not recording.is_comparing:
            recording.paused_by(compare)
        if asked.turn_s and step > WARM_UP and not recording.is_comparing and turn.is_over(step):
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

    kept = None if asked.reference is None else KeptSteps.read(Path(asked.reference))
    shaken = SHAKEN[asked.repeats] if asked.shaken else 0.0
    states = kept.states if kept is not None else {}
    compared = ComparedSteps(asked.places, COMPARED_BATCHES, states, shaken=shaken, part=asked.part)
    recording = StepRecorder(asked.steps, done, step_over, asked.evaluates, asked.losses, compared)
    if asked.exact:
        compared.puts_dropout_back = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
    for file, text in asked.patched:
        with open(file, "w", newline="") as patched:
            patched.write(text)
    for name, value in asked.remedies if not asked.patched else ():
        REMEDIES[name].apply(value, hooks)
    recording.install(patches, hooks)
    hooks.install()
    seed_everything(asked.seed, patches)
    ending = run_script(Script(asked.script, asked.arguments, asked.as_module))
    if recording.steps_done > WARM_UP + 5:
        done()  # a short script: use the steps there are
    error = "" if ending.error is None else _in_one_line(ending.error)
    few = f"the script ended with code {ending.exit_code} after {recording.steps_done} steps"
    answer(Told("failed" if error else "short", error or few, took_s=time.monotonic() - began_s))


def _measured(
    asked: TrialRequest,
    recording: StepRecorder,
    compared: ComparedSteps,
    kept: KeptSteps | None,
    turns_s: Sequence[float] | None,
    began_s: float,
) -> Told:
    if asked.keep is not None:
        KeptSteps.of(compared, asked.places).write(Path(asked.keep))
    repeats: tuple[Mapping[str, Any], ...] = ()
    if kept is not None and asked.repeats:
        repeats = kept.repeated_by(compared, asked.repeats, recording.device)
    on_device = recording.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_device else None
    share = torch.cuda.max_memory_reserved() / torch.cuda.mem_get_info()[1] if on_device else None
    return Told(
        steps_s=tuple(recording.steps_s(WARM_UP) if turns_s is None else turns_s),
        steps_done=recording.steps_done,
        evaluations_s=tuple(recording.evaluations_s()),
        losses=tuple(recording.losses()),
        check=_checked(asked, recording, compared, kept),
        repeats=repeats,
        first_s=recording.first_s,
        peak_bytes=peak,
        memory_share=share,
        device=recording.device.type,
        took_s=time.monotonic() - began_s,
    )


def _checked(
    asked: TrialRequest, recording: StepRecorder, compared: ComparedSteps, kept: KeptSteps | None
) -> Mapping[str, Any] | None:
    """None if there is nothing to compare with, or the script is unmodified."""
    if kept is None or asked.repeats:
        return None
    noise = None if asked.noise is None else json.loads(Path(asked.noise).read_text())
    return kept.checked(compared, asked.places[-1], asked.precision, noise, recording.device)


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
