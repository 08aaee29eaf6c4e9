"""Decisions replayed from measurements of real devices (benchmarks/record_knobs.py). Nothing is measured here."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.engine.job import Job
from flatout.engine.settings import Settings, value_of
from flatout.machine.ceilings import Ceilings
from flatout.measure.receipt import KEPT, REJECTED, UNTRIED, Receipt
from flatout.plan.choose import choose_in
from flatout.plan.knobs.all import KNOBS
from flatout.plan.options import SearchTerms
from flatout.plan.prediction import OperatorGroup, Prediction
from flatout.plan.search import KnobSearch
from flatout.plan.situation import Situation
from flatout.plan.trials.recording import Recording
from flatout.recipe.build import build_job

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent.parent / "benchmarks"
RECORDED = sorted(path for path in HERE.glob("*.json") if not path.name.startswith("ceilings-"))
UNLESS_SLOWER = (
    "activation_checkpointing",
    "loss_head",
    "fused_optimizer",
    "graph",
    "residual",
)  # kept for a benefit that trials can't show
KNOBS_BY_NAME = {knob.name: knob for knob in KNOBS}

pytestmark = pytest.mark.skipif(not RECORDED, reason="no recording of a machine is here: benchmarks/record_knobs.py makes them")


@cache
def recorded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@cache
def job_of(path: Path) -> Job:
    sys.path.insert(0, str(BENCHMARKS))
    from record_knobs import MODELS

    return build_job(MODELS[recorded(path)["model"]](recorded(path)["smoke"]))


def prediction(written: dict[str, Any]) -> Prediction:
    return Prediction(**{**written, "groups": tuple(OperatorGroup(**group) for group in written["groups"])})


@pytest.fixture(autouse=True)
def a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces torch's queries about a device that is not here."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr("flatout.objectives.token_loss._HAS_TRITON", True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "recorded")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (149 * 10**9, 150 * 10**9))


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Iterator[Path]:
    yield request.param


def situation(path: Path, **pins: Any) -> Situation:
    found = recorded(path)
    device = torch.device(found["default"]["device"])
    kind = path.stem.removeprefix(f"{found['model']}-")
    ceilings = Ceilings.from_dict(json.loads((HERE / f"ceilings-{kind}.json").read_text()))
    foretold = {words: prediction(one) for words, one in found["foretold"].items()}
    return Situation(job_of(path), device, pins, ceilings, prediction(found["plain"]), None, foretold)


def replay(path: Path, recording: dict[str, Any] | None = None, *, steps: float | None = None, **pins: Any) -> Receipt:
    found = recorded(path)
    terms = (
        SearchTerms(found["steps_left"], found["limit_s"], analyze=True) if steps is None else SearchTerms(steps, limit_s=1e9)
    )
    start = choose_in(situation(path, **pins), path.stem).settings
    return KnobSearch(situation(path, **pins), start, KNOBS, Recording(recording or found["recording"]), terms).run()


def has(words: str, name: str, value: Any) -> bool:
    """Whether settings in words, which leave out what is plain, have that value."""
    told = dict(part.partition("=")[::2] for part in words.partition(" beside ")[0].partition(";")[0].split(", "))
    return told.get(name, str(value_of(Settings(), name))) == str(value)


def test_defaults_are_those_of_the_recorded_machine(path: Path) -> None:
    found = choose_in(situation(path), path.stem).settings
    assert found == Settings(**recorded(path)["default"])


def test_the_replayed_search_gives_the_recorded_result(path: Path) -> None:
    found, receipt = recorded(path), replay(path)
    kept = {f"{entry.name}={entry.value}" for entry in receipt.entries if entry.verdict == KEPT}
    assert kept == set(found["kept"])
    assert receipt.gain == pytest.approx(Receipt.from_dict(found["receipt"]).gain, rel=0.02)


def test_the_result_is_proven_and_not_slower_than_the_baseline(path: Path) -> None:
    receipt = replay(path)
    assert receipt.gain is not None and receipt.gain >= 1
    for entry in receipt.entries:
        if entry.verdict == KEPT:
            assert entry.check is not None and entry.check["passed"], entry
            assert entry.low is not None and entry.measured is not None
            assert entry.low > 1 or (entry.name in UNLESS_SLOWER and entry.measured > 0.98), entry
    assert receipt.settings == receipt.reference or receipt.paired is None or receipt.paired["passed"]


def test_every_knob_that_was_kept_can_be_switched_off(path: Path) -> None:
    for name in {entry.name for entry in replay(path).entries if entry.verdict == KEPT}:
        off = KNOBS_BY_NAME[name].off
        receipt = replay(path, **{name: off})
        assert value_of(Settings(**receipt.settings), name) == off
        assert name not in {entry.name for entry in receipt.entries}


def test_a_different_result_is_rejected_however_fast(path: Path) -> None:
    """Plants a bug in each kept knob, one at a time: wrong gradients."""
    for name, value in {(entry.name, entry.value) for entry in replay(path).entries if entry.verdict == KEPT}:
        spoilt = copy.deepcopy(recorded(path)["recording"])
        for words, report in spoilt["reports"].items():
            if has(words, name, value) and report["check"] is not None:
                report["check"] = {**report["check"], "passed": False, "why": "a gradient is twice as long"}
        receipt = replay(path, spoilt)
        assert value_of(Settings(**receipt.settings), name) != value, name
        assert any(e.name == name and e.verdict == REJECTED and "not the same" in e.why for e in receipt.entries)


def test_a_setting_with_a_worse_loss_is_dropped(path: Path) -> None:
    spoilt = copy.deepcopy(recorded(path)["recording"])
    lossy = [e for e in replay(path).entries if e.verdict == KEPT and KNOBS_BY_NAME[e.name].lossy]
    for words, losses in spoilt["losses"].items():
        if any(has(words, entry.name, entry.value) for entry in lossy):
            losses["losses"] = [1.5 * loss for loss in losses["losses"]]
    receipt = replay(path, spoilt)
    tried = [e for e in receipt.entries if e.verdict != UNTRIED and any((e.name, e.value) == (o.name, o.value) for o in lossy)]
    assert tried or not lossy  # without the first knob, later trials may not be recorded
    for entry in tried:
        assert entry.verdict == REJECTED and value_of(Settings(**receipt.settings), entry.name) != entry.value


def test_a_run_that_is_too_short_tries_nothing(path: Path) -> None:
    receipt = replay(path, steps=1)
    assert not [entry for entry in receipt.entries if entry.verdict in (KEPT, REJECTED)]
    assert "trials would cost" in receipt.stopped


def test_compiling_must_pay_for_itself(path: Path) -> None:
    compiled = [one for one in replay(path).entries if one.name == "compile" and one.verdict == KEPT]
    if not compiled:
        return
    (entry,) = compiled
    assert entry.first_s is not None and entry.step_s is not None and entry.measured is not None
    pays_in = entry.first_s / (entry.step_s * (entry.measured - 1))
    assert pays_in < recorded(path)["steps_left"]
    found = recorded(path)["recording"]
    start = choose_in(situation(path), path.stem).settings
    few = KnobSearch(situation(path), start, KNOBS, Recording(found), SearchTerms(pays_in / 2, limit_s=1e9, free=True)).run()
    assert few.settings["compile"] != entry.value
