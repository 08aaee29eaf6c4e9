"""Where a study's time went adds up to what a user waits, and its start is short: nothing is measured that it does not need."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from interpreters import run_forked
from stacking import DIGITS, recipe, table

import flatout as fo
from flatout.base.answering_child import CRASHED, NoAnswer
from flatout.base.events import read_events
from flatout.cli.ahead import StudyEndAhead
from flatout.machine import probe
from flatout.recipe.load import read_recipe
from flatout.tuning.crew.own_seats import own_seats
from flatout.tuning.crew.template import TrialTemplate
from flatout.tuning.search.search import TrialSearch
from flatout.tuning.search.trials import RungAnswer
from flatout.tuning.space import space_of
from flatout.tuning.study.ledger import LAYOUTS, RUNGS, START, TRAINING, StudyLedger, ledger_lines
from flatout.tuning.training.shared import Group


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_each_second_is_charged_once() -> None:
    clock = Clock()
    ledger = StudyLedger(98.0, {TRAINING: 50.0}, clock)
    with ledger.timed(RUNGS):
        clock.now_s += 1
        with ledger.timed(LAYOUTS):
            clock.now_s += 4
        clock.now_s += 10
        ledger.add(TRAINING, 9.5)
    parts = ledger.parts(67.5)
    assert {part: seconds for part, seconds in parts.items() if seconds} == {
        START: 2.0, LAYOUTS: 4.0, RUNGS: 1.5, TRAINING: 59.5, "rest": 0.5,
    }  # fmt: skip
    assert sum(parts.values()) == 67.5 and ledger.once_s == 6.0
    assert len(ledger_lines(parts, 67.5)) == 4, "training is no overhead"


def test_the_parts_of_a_command_add_up_to_its_time(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**DIGITS, "budget": "16 steps"}))
    words = ["-m", "flatout", "tune", "recipe.yaml", "lr=1e-3..1e-1", "--trials", "4", "--json"]
    began_s = time.monotonic()
    ended = run_forked(words, cwd=tmp_path, env={**os.environ, "FLATOUT_CACHE": str(tmp_path / "cache")})
    waited_s = time.monotonic() - began_s
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    parts, result = told["parts"], told["result"]
    assert parts == result["parts"] and min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(result["seconds"]) and result["seconds"] < waited_s
    assert parts["training"] + parts["finals"] == pytest.approx(result["training_s"])
    assert all(parts[part] > 0 for part in ("start", "process", "data", "layouts", "search"))
    rungs = [event for event in read_events(next(tmp_path.glob("runs/*/study.jsonl"))) if event["kind"] == "rung"]
    assert [event["spent"]["seconds"] for event in rungs] == [pytest.approx(sum(event["parts"].values())) for event in rungs]
    shown = run_forked(["-m", "flatout", "runs", "show", Path(told["folder"]).name], cwd=tmp_path)
    assert "measuring layouts (" in shown.stdout and "; the rest:" in shown.stdout


def test_what_the_output_needs_is_imported_while_the_winner_is_judged() -> None:
    ahead = StudyEndAhead(("no_such_module", "colorsys"))
    sys.modules.pop("colorsys", None)
    ahead({"kind": "rung"})
    assert ahead.importance is None and "colorsys" not in sys.modules
    ahead({"kind": "finals"})
    assert ahead.importance is None and "colorsys" in sys.modules


def test_a_long_start_makes_no_step_dearer() -> None:
    """Of two studies that have trained as much, the one that began late has less time left, at the same price of a step."""

    def left(once: float) -> float:
        search = TrialSearch(space_of({"lr": "1e-4..1e-1"}), total=160, higher_is_better=True, seed=0)
        rung = search.next()
        assert rung is not None
        search.tell(RungAnswer({one.number: 0.1 * one.number for one in rung.trials}, once + 0.01, once))
        return search.standing.steps_left()

    assert left(0.5) == pytest.approx(left(0.0) * 0.49 / 0.99)


@pytest.mark.parametrize("data", [DIGITS["data"], {"arrays": table(), "holdout": 0.3}], ids=["digits", "arrays"])
def test_on_a_cpu_nothing_is_measured_for_rows_in_memory(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*given: Any, **more: Any) -> Any:
        raise AssertionError("the machine was measured")

    monkeypatch.setattr(probe, "measure_ceilings", measured)
    group = Group(recipe(data=data), None, 1)
    pinned = Group(recipe(data=data, settings={"device": "cpu", "evaluation_batch": 32}), None, 1)
    assert group.settings.tier == "resident" and group.settings.precision == "fp32" and group.settings.threads == 1
    assert group.settings.evaluation_batch == 256 and pinned.settings.evaluation_batch == 32
    for one in (group, pinned):
        one.close()


@pytest.fixture
def asked(tmp_path: Path) -> fo.Recipe:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(DIGITS))
    return read_recipe(tmp_path / "recipe.yaml")


@pytest.mark.skipif(not TrialTemplate.is_possible(), reason="processes are forked on Linux alone")
def test_processes_are_forked_and_a_template_that_was_killed_is_started_again(asked: fo.Recipe) -> None:
    with TrialTemplate() as template, ExitStack() as until_done:
        template.begin()
        members = [seat.make() for seat in own_seats(asked, None, ["cpu", "cpu"], None, template)]
        for member in members:
            until_done.callback(member.stop)
        answers = [member.ask({"about": {}}, 100.0) for member in members]
        assert answers[0]["identity"] == answers[1]["identity"]
        (first,) = templates()
        forks = first.children()
        assert len(forks) == 2, "both are forks of one process"
        os.kill(first.pid, signal.SIGKILL)
        assert not psutil.wait_procs(forks, 20)[1], "they end with it"
        with pytest.raises(NoAnswer, match="SIGKILL") as none:
            members[0].ask({"about": {}}, 100.0)
        assert none.value.kind == CRASHED
        assert members[0].ask({"about": {}}, 100.0)["identity"] == answers[0]["identity"]
        (second,) = templates()
        assert second.pid != first.pid
    assert not templates()


@pytest.mark.skipif(not TrialTemplate.is_possible(), reason="processes are forked on Linux alone")
def test_a_template_that_nobody_needed_is_ended_at_once() -> None:
    """As when the command ends with a mistake in its words: it does not wait for the imports of the template."""
    with TrialTemplate() as template:
        template.begin()
        assert len(templates()) == 1
    assert not templates()


def templates() -> list[psutil.Process]:
    """Children of this process that fork others for trials."""
    return [one for one in psutil.Process().children() if "flatout.cli.study_worker" in one.cmdline()]
