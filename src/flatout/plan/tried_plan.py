"""A plan after trials of its settings: which trials are worth it, where they run, and which settings they keep."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.machine.device import device_name
from flatout.measure.receipt import Receipt
from flatout.measure.recording import Trove
from flatout.plan.knobs.all import PRICED
from flatout.plan.knobs.knob import Knob
from flatout.plan.options import Options, SearchTerms
from flatout.plan.plan import Plan
from flatout.plan.situation import Situation
from flatout.plan.trial_key import versions
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.process import TRIAL_LIMIT_S, TrialProcess
from flatout.plan.trials.recording import Recording
from flatout.plan.trials.reports import Tries
from flatout.plan.with_receipt import steps_to_come, with_receipt
from flatout.recipe.schema import Recipe

Say = Callable[[str], None]


@dataclass(frozen=True)
class AskedTrials:
    """How trials are asked for: see `checked_plan`."""

    limit_s: float
    analyze: bool
    recall: bool
    say: Say


def tried_plan(
    recipe: Recipe, s: Situation, plan: Plan, knobs: Sequence[Knob], trove: Trove, live: Tries, asked: AskedTrials
) -> tuple[Plan, Receipt | None]:
    """The plan with the settings that trials kept, and their receipt. Measurements of earlier runs are taken from the trove."""
    s, steps = replace(s, prefer=recipe.prefer), steps_to_come(s)
    if steps is None:
        return plan, None
    isolated = recipe.source is not None
    if not isolated and s.job.data.train.stream is not None:
        return plan, None  # a trial would consume samples of the run
    kept = trove.kept
    if asked.recall and kept is None:
        return plan, None
    if kept is not None:
        asked.say(f"using the measurements of {trove.at}")
    began_s = time.monotonic()
    recording = Recording(kept, None if asked.recall else live)
    terms = SearchTerms(steps, asked.limit_s, isolated, asked.analyze, prefer=recipe.prefer, free=asked.recall)
    options = Options(s, plan.settings, knobs, terms)
    if (why := options.why_none()) is None:
        receipt = _searched(s, plan.settings, knobs, recording, terms, asked.say)
    elif kept is not None:  # the run is too short for new trials, but earlier ones count
        recording = Recording(kept)
        receipt = _searched(s, plan.settings, knobs, recording, replace(terms, free=True), asked.say)
    else:
        plain = options.reference.to_dict()
        receipt = Receipt(reference=plain, settings=plain, entries=(), isolated=isolated, stopped=why)
    if recording.asked_live:
        trove.write(recording.to_dict())
    receipt = replace(
        receipt,
        took_s=time.monotonic() - began_s,
        notes=tuple(note for note in (trove.note, _replayed_note(trove.at, recording), *_on_energy(s, receipt)) if note),
        machine=device_name(s.device),
        versions=versions(),
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    return with_receipt(plan, receipt, s, knobs, "measured" if recording.asked_live else "cached"), receipt


def _on_energy(s: Situation, receipt: Receipt) -> list[str]:
    if s.prefer == "time":
        return []
    from flatout.machine.energy import device_energy  # here: trials for time start sooner
    from flatout.plan.trial_energy import notes_on_energy

    meter = device_energy(s.device)
    meter.close()
    return notes_on_energy(s, receipt, meter.why_unavailable or "the trials were recorded without a meter")


def _searched(
    s: Situation, start: Settings, knobs: Sequence[Knob], recording: Recording, terms: SearchTerms, say: Say
) -> Receipt:
    from flatout.plan.search import KnobSearch  # here: a run that is too short for trials starts sooner

    return KnobSearch(s, start, knobs, recording, terms, priced=PRICED, clock=recording.clock, say=say).run()


def _replayed_note(at: str, recording: Recording) -> str:
    if not at or not recording.replayed:
        return ""
    rest = "the rest now" if recording.asked_live else "nothing now"
    return f"{recording.replayed} of the measurements were made at {at}, {rest}."


@contextmanager
def tries(
    recipe: Recipe, job: Job, device: torch.device, cache: Path | None, limit_s: float
) -> Iterator[TrialProcess | _InProcess]:
    """Trials run in a child process if the recipe comes from a file. Python objects exist only in this process."""
    if recipe.source is None:
        with _InProcess(job, device) as here:
            yield here
        return
    told = json.dumps(_for_another_process(recipe, device, cache))
    with TrialProcess([sys.executable, "-m", "flatout.cli.trying"], min(limit_s, TRIAL_LIMIT_S), told) as process:
        yield process


def _for_another_process(recipe: Recipe, device: torch.device, cache: Path | None) -> dict[str, Any]:
    assert recipe.source is not None
    overrides, pins = recipe.given
    return {
        "recipe": str(recipe.source.resolve()),
        "overrides": list(overrides),
        "pins": dict(pins),
        "device": str(device),
        "cache": None if cache is None else str(cache),
        "threads": torch.get_num_threads(),
        "path": sys.path,
    }


class _InProcess:
    """Trials in this process. The bench is made for the first trial."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self._job, self._device = job, device
        self._made: Bench | None = None

    def __enter__(self) -> _InProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self._made is not None:
            self._made.close()

    def begin(self) -> None:
        """Nothing to prepare: this process is busy with the run itself."""

    def attempt(self, ask: Any) -> Any:
        return self._bench().attempt(ask)

    def losses(self, settings: Any, steps: int, seed: int, after: int = 0) -> Any:
        return self._bench().losses(settings, steps, seed, after)

    def held(self, settings: Any, rows: int) -> Any:
        return self._bench().held(settings, rows)

    def _bench(self) -> Bench:
        if self._made is None:
            self._made = Bench(self._job, self._device)
        return self._made
