"""Trials in processes of their own: one that crashes, hangs or is killed fails alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import own_models
import psutil
import pytest
import yaml
from stacking import DIGITS

import flatout as fo
from flatout.base.answering_child import CRASHED, FAILED, HUNG, NoAnswer
from flatout.base.errors import StoreError
from flatout.tuning.crew import attempts
from flatout.tuning.crew import crew as crew_module
from flatout.tuning.crew.crew import TrialCrew
from flatout.tuning.crew.placing import TrialWork
from flatout.tuning.crew.seats import CrewMember, CrewSeat
from flatout.tuning.study import finals
from flatout.tuning.study.packing import packed_if_faster
from flatout.tuning.training.layout import PACKED, SERIAL, STACKED, Layout

TRIALS = [(number, []) for number in range(6)]
LAYOUT = Layout(STACKED, 6, rates={"serial": 100.0})


class Scripted:
    """A process that ends, or does not answer, if it is asked to train certain trials."""

    made = 0

    def __init__(self, bad: Mapping[int, str], times: int = 100) -> None:
        type(self).made += 1
        self.bad, self.times, self.asked, self.stopped = bad, times, list[Any](), False

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        self.asked.append(question)
        ((verb, given),) = question.items()
        if verb != "train":
            return {"rate": 1.0, "bytes": 0, "free_bytes": None, "seen": True}
        numbers = [number for number, _ in given["trials"]]
        for number in numbers:
            if number in self.bad and Scripted.counts.get(number, 0) < self.times:
                Scripted.counts[number] = Scripted.counts.get(number, 0) + 1
                raise NoAnswer(self.bad[number], f"trial {number} is bad")
        return {"scores": {str(number): number / 10 for number in numbers}, "seconds": 1.0}

    def stop(self) -> None:
        self.stopped = True

    counts: dict[int, int] = {}  # noqa: RUF012


def a_crew(make: Callable[[], CrewMember], packed: int = 1, devices: int = 1, isolated: bool = True) -> TrialCrew:
    return TrialCrew([CrewSeat(f"cpu {place}", make) for place in range(devices)], isolated=isolated, packed=packed)


@pytest.mark.parametrize("kind", [CRASHED, HUNG, FAILED])
@pytest.mark.parametrize("bad", [[0], [5], [1, 2], [0, 5]])
def test_only_the_trials_that_do_it_fail(kind: str, bad: list[int], tmp_path: Path) -> None:
    Scripted.counts, Scripted.made = {}, 0
    crew = a_crew(lambda: Scripted(dict.fromkeys(bad, kind)))
    crew.keep_states_in(tmp_path)
    found = crew.train([TrialWork(TRIALS, 0, 10, LAYOUT)], "choose")
    assert {number for number, score in found.scores.items() if isinstance(score, str)} == set(bad)
    assert all(found.scores[number] == number / 10 for number, _ in TRIALS if number not in bad)
    assert bool(found.lost) == (kind != FAILED)
    assert (Scripted.made == 1) == (kind == FAILED), "after a crash a new process is told where states are"


def test_a_crash_that_does_not_come_again_fails_no_trial() -> None:
    Scripted.counts = {}
    crew = a_crew(lambda: Scripted({3: CRASHED}, times=1))
    assert not [
        score for score in crew.train([TrialWork(TRIALS, 0, 10, LAYOUT)], "choose").scores.values() if isinstance(score, str)
    ]


def test_several_processes_share_the_trials() -> None:
    Scripted.counts, Scripted.made = {}, 0
    crew = a_crew(lambda: Scripted({4: CRASHED}), 2)
    found = crew.train([TrialWork(TRIALS, 0, 10, Layout(PACKED, processes=2))], "choose")
    assert found.scores == {0: 0.0, 1: 0.1, 2: 0.2, 3: 0.3, 4: "trial 4 is bad", 5: 0.5}
    assert crew.rate_packed(TRIALS[0], 0.1, 2).steps_s >= 0


class Sharing(Scripted):
    """Processes on one device: together they do at most so many steps a second, and its memory is used up."""

    gibibytes, most_steps_s = 100.0, 1e9
    alive: list[Sharing] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__({})
        Sharing.alive.append(self)

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        together = len(Sharing.alive)
        free = int((self.gibibytes - 4 * together) * 2**30)
        return {"rate": min(10.0, self.most_steps_s / together), "bytes": 4 * 2**30, "free_bytes": free, "seen": True}

    def stop(self) -> None:
        Sharing.alive.remove(self)


@pytest.mark.parametrize(
    ("gibibytes", "most_steps_s", "steps", "processes"),
    [
        (100.0, 1e9, 10_000, 8),  # as many as there are cores
        (20.0, 1e9, 10_000, 4),  # as many as fit
        (100.0, 42.0, 10_000, 4),  # more are not faster
        (100.0, 10.0, 10_000, 1),  # the device is busy with one
        (100.0, 1e9, 90, 1),  # over before it would pay
    ],
)
def test_as_many_processes_share_a_gpu_as_pays(
    gibibytes: float, most_steps_s: float, steps: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sharing, "gibibytes", gibibytes)
    monkeypatch.setattr(Sharing, "most_steps_s", most_steps_s)
    monkeypatch.setattr(Sharing, "alive", [])
    crew = a_crew(Sharing, packed=8)
    serial = Layout(SERIAL, threads=0, rates={"serial, on the device": 10.0}, measured_with=6)
    found = packed_if_faster(crew, TRIALS, steps, serial)
    assert (found.kind, found.processes) == ((PACKED, processes) if processes > 1 else (SERIAL, 1))
    assert len(Sharing.alive) <= processes, "the others would hold memory"


def test_ctrl_c_does_not_wait_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Scripted):
        def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
            if question["train"]["trials"][0][0] == 0:
                raise KeyboardInterrupt
            ends_s = time.monotonic() + 20
            while not self.stopped and time.monotonic() < ends_s:
                time.sleep(0.01)
            raise NoAnswer(CRASHED, "it was stopped")

    crew = a_crew(lambda: Slow({}), 2)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        crew.train([TrialWork(TRIALS, 0, 10, Layout(PACKED, processes=2))], "choose")
    assert time.monotonic() - began_s < 5


def test_what_can_not_be_saved_is_reported_and_no_error() -> None:
    class Full(Scripted):
        def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
            if "save" in question:
                raise StoreError("no space left on device")
            return super().ask(question, limit_s)

    crew = a_crew(lambda: Full({}), isolated=False)
    crew.train([TrialWork(TRIALS, 0, 10, LAYOUT)], "choose")
    assert crew.ask_all({"save": {"numbers": [1]}}) == ["no space left on device"]


def written(folder: Path, trouble: str) -> Path:
    (folder / "own_models.py").write_text(Path(own_models.__file__).read_text())
    model = {"own_models:troubled": {"width": 8, "trouble": trouble}}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**DIGITS, "model": model, "budget": "16 steps"}))
    return path


def test_processes_that_end_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_LEAST_LIMIT_S", 5.0)
    monkeypatch.setattr(crew_module, "_MEASURING_LIMIT_S", 15.0)
    monkeypatch.setattr(finals, "_SIZES", ((1, 1, 3),))
    study = fo.tune(
        written(tmp_path, "ends"),
        {"model.width": [8, 13, 14]},
        trials=3,
        budget="10 min",
        runs=tmp_path / "runs",
        cache=tmp_path / "cache",
    )
    whys = sorted(study.result["failed"])
    assert len(whys) == 2 and "did not answer" in whys[0] and "ended with code 3" in whys[1]
    assert study.result["winner"]["point"] in ({}, {"model.width": 8})
    assert study.result["lost_processes"]
    assert not [one for one in psutil.Process().children(recursive=True) if "study_worker" in " ".join(one.cmdline())]
