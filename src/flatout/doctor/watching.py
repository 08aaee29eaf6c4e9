"""Observes a script, or the loop inside a `with`, and reports the findings."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import torch

from flatout.base.errors import MachineError
from flatout.base.tree import Doc, to_data, to_text
from flatout.doctor.case import make_case
from flatout.doctor.diagnosis import Diagnosis, diagnose, doc, nothing
from flatout.doctor.observing.observer import ObservedSteps, Observer
from flatout.machine.cache import CeilingsCache
from flatout.machine.device import CPU, pick_device
from flatout.machine.facts import fingerprint, read_facts
from flatout.machine.gains import Gains
from flatout.machine.others_work import OthersWork
from flatout.machine.paging import page_seconds
from flatout.machine.probe import Probe, keep_gains, probe
from flatout.machine.rates import operator_seconds

STEPS = 30
_OPERATOR_S = 5e-6
_GAINS_S = 2.0  # at the end, to measure the speed-up of optimisations
_PATIENCE_S = 20.0  # a script that runs longer than this after its window gets a first report


class ScriptWatch:
    """After `stop`, `diagnosis` has the findings, or is None if nothing was trained."""

    def __init__(
        self,
        steps: int = STEPS,
        cache: Path | None = None,
        *,
        when_done: Callable[[], None] = lambda: None,
        scratch: Path | None = None,
    ) -> None:
        """`scratch`: where to make the working folder, which `stop` removes."""
        self.diagnosis: Diagnosis | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="flatout-doctor-", dir=scratch))
        self._cache, self._when_done = cache, when_done
        self.observer = Observer(self._folder, ObservedSteps.of(steps), self._window_closed, self._running_on)
        self._first_report: TextIO | None = None
        self._report_at_s: float | None = None
        self._others = OthersWork()
        self._shared: str | None = None

    def start(self, first_report: TextIO | None = None) -> None:
        """If the script runs long after the window, a first report is printed to `first_report`."""
        self._first_report = first_report
        self.observer.start()

    def stop(self) -> None:
        self.observer.stop()
        self.diagnosis = self._concluded(_GAINS_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def doc(self) -> Doc | None:
        return None if self.diagnosis is None else doc(self.diagnosis)

    def to_dict(self) -> dict[str, object]:
        return nothing(self.observer.seen.steps) if self.doc is None else to_data(self.doc)

    def __str__(self) -> str:
        return self.why_nothing() if self.doc is None else to_text(self.doc)

    def why_nothing(self) -> str:
        steps = self.observer.seen.steps
        if not steps:
            return "no training step was seen: the main thread called no optimizer.step() and no backward(). Does it train?"
        were = "1 step was" if steps == 1 else f"{steps} steps were"
        return f"{were} trained, too few for a diagnosis: the first three are warm-up"

    def _window_closed(self) -> None:
        self._shared = None if _is_one_of_many() else self._others.in_words()
        self._report_at_s = time.perf_counter() + _PATIENCE_S
        self._when_done()

    def _running_on(self) -> None:
        """Called at each step after the window."""
        if self._report_at_s is None or time.perf_counter() < self._report_at_s or self._first_report is None:
            return
        self._report_at_s = None
        self.observer.sum_up()
        found = self._concluded(0.0)  # no measurements: they would delay the script
        if found is not None:
            print(f"\n{to_text(doc(found))}\n(the script is still running)\n", file=self._first_report, flush=True)

    def _concluded(self, gains_s: float) -> Diagnosis | None:
        seen, trace = self.observer.seen, self.observer.trace
        if trace is None or not trace.steps:
            return None
        notes = []
        if not self.observer.complete:
            notes.append(f"only {seen.steps} steps were trained, fewer than planned: the numbers are rough")
        if self._shared:
            notes.append(self._shared)
        if (known := known_probe(seen.device, self._cache)) is None and self._cache is not None:
            notes.append("this machine's peak is not measured: run `flatout probe` once to see how much of it the script uses")
        measured = None if known is None else known.ceilings.operator_s
        operator_s = _operator_s() if measured is None else measured.value
        gains = Gains(None if known is None else known.ceilings.gains, gains_s)
        found = diagnose(make_case(seen, trace, known, operator_s, page_seconds(), gains), notes)
        if self._cache is not None:
            keep_gains(found.case.device, self._cache, gains.new)
        return found


def _is_one_of_many() -> bool:
    """Processes of the same distributed training do not count as other work."""
    return torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def _operator_s() -> float:
    try:
        with torch.enable_grad():
            return min(operator_seconds(CPU, 0.05))  # the minimum, because other processes slow some of them down
    except RuntimeError:  # the script may leave torch in a mode that forbids this
        return _OPERATOR_S


@contextmanager
def watch(steps: int = STEPS, *, cache: Path | None = None, tell: TextIO | None = None) -> Iterator[ScriptWatch]:
    """Observe the training loop inside this `with`, and print the findings at its end.

        with fo.doctor.watch():
            for x, y in loader: ...

    `steps`: how many to observe; a third of them run under the profiler. `tell`: where to print, stdout by default.
    `cache`: the folder of `flatout probe`'s measurements of this machine.
    """
    watched = ScriptWatch(steps, cache)
    watched.start()
    try:
        yield watched
    finally:
        watched.stop()
    print(watched, file=tell or sys.stdout)


def known_probe(device: str, cache: Path | None) -> Probe | None:
    """The cached probe of this machine, or None. Measures nothing, because the script is using the machine."""
    try:
        found = pick_device(device)
    except MachineError:
        return None
    if cache is None or CeilingsCache(cache).load(fingerprint(read_facts()), found, True) is None:
        return None
    return probe(found, cache, quick=True)
