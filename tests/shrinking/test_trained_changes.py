"""Pruning and distillation on a real run: smaller, still accurate, composed with int8, and what ends them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answering import Script, ShrinkSteps, search_of
from gating import smaller

from flatout.base.answering_child import NoAnswer
from flatout.packaging.package import Package, open_package
from flatout.shrinking.changes.distill import Distill
from flatout.shrinking.changes.int8_static import Int8Static
from flatout.shrinking.changes.low_rank import LowRank
from flatout.shrinking.changes.prune import Prune
from flatout.shrinking.making import make_smaller
from flatout.shrinking.rows import RowSets
from flatout.shrinking.workshop import bench
from flatout.shrinking.workshop.bench import CandidateBench
from flatout.shrinking.workshop.workshop import Workshop

Command = Callable[..., tuple[int, str, str]]
PRUNE = {"change": "prune", "value": "50%", "floats": []}
DISTILL = {"change": "distill", "value": "1/4", "floats": []}
STATIC = {"change": "int8_static", "value": "", "floats": []}


def right(workshop: Workshop, name: str) -> float:
    with np.load(workshop.ask({"ask": "judge", "name": name, "which": "judging", "batch": 64}, 100.0)["file"]) as kept:
        return 1.0 - float(kept["wrong"].mean())


def test_a_pruned_and_a_distilled_model_are_small_and_accurate(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    before = workshop.ask({"ask": "start", "batch": 1}, 100.0)["bytes"]
    lessons = workshop.ask({"ask": "lessons"}, 100.0)["changes"]
    assert lessons["prune"]["50%"]["why_not"] is None and lessons["prune"]["50%"]["takes_s"] > 0
    pruned = workshop.ask({"ask": "make", "steps": [PRUNE], "name": "pruned"}, 100.0)
    assert pruned["notes"]["flops"] <= 0.5 and pruned["notes"]["weights"] < 0.7 and pruned["bytes"] < 0.7 * before
    twin = workshop.ask({"ask": "make", "steps": [DISTILL], "name": "twin"}, 100.0)
    assert 0.2 < twin["notes"]["weights"] <= 0.25 and twin["bytes"] < 0.35 * before
    assert right(workshop, "source") > 0.95 and right(workshop, "pruned") > 0.95 and right(workshop, "twin") > 0.95

    monkeypatch.setattr(Prune, "make", None)  # it was trained once, and int8 starts from what came of it
    both = workshop.ask({"ask": "make", "steps": [PRUNE, STATIC], "name": "both"}, 100.0)
    assert both["bytes"] < 0.75 * pruned["bytes"] and both["notes"]["flops"] <= 0.5 and right(workshop, "both") > 0.95
    assert not list(workshop.folder.glob("training-*")), "runs of trainings are not left behind"


def test_a_pruned_package_answers_and_its_receipt_says_what_was_tried(
    package: Package, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real but the clock: a trained model is fastest, with int8 faster still."""

    def timed(self: CandidateBench, first: str, second: str, batch: int, turns: int, most_s: float) -> dict[str, Any]:
        def arm(name: str) -> dict[str, Any]:
            size = 1.0 if name == "source" else self._file(name).stat().st_size / 50_000
            return {"blocks_s": [1e-4 * size] * turns, "calls_s": [1e-4 * size] * turns}

        return {"first": arm(first), "second": arm(second)}

    monkeypatch.setattr(CandidateBench, "_time", timed)
    monkeypatch.setattr(Prune, "values", ("50%",))
    monkeypatch.setattr(Distill, "values", ())
    monkeypatch.setattr(LowRank, "values", ())
    made = smaller(package, margin=2.0)
    assert made.kept[0] == "prune 50%" and len(made.kept) == 2
    assert open_package(Path("shrunk")).predict(package.samples.rows["x"][:8].numpy())["prediction"].shape == (8,)
    code, out, _ = command("receipt", "shrunk")
    assert code == 0 and "prune 50%" in out and "of the FLOPs" in out
    written = json.loads(command("receipt", "shrunk", "--json")[1])
    trained = [one for one in written["entries"] if one["name"].startswith("prune") and one["check"]]
    assert trained and all(0 < one["check"]["notes"]["flops"] < 1 for one in trained)


def test_ctrl_c_in_a_training_keeps_what_is_proven(package: Package, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CandidateBench, "_time", lambda self, first, second, batch, turns, most_s: {
        arm: {"blocks_s": [1e-3 if name == "source" else 5e-4] * turns, "calls_s": [1e-3] * turns}
        for arm, name in (("first", first), ("second", second))})  # fmt: skip
    make = Prune.make

    def interrupted(self: Prune, lessons: Any, value: str) -> Any:
        train = lessons._trained
        lessons._trained = lambda *given: (os.kill(os.getpid(), signal.SIGINT), train(*given))[1]
        return make(self, lessons, value)

    monkeypatch.setattr(Prune, "make", interrupted)
    monkeypatch.setattr(bench, "CHANGES", {"int8_static": Int8Static()})
    monkeypatch.setattr(make_smaller, "__kwdefaults__", {**make_smaller.__kwdefaults__, "isolated": False})
    code, out, errors = command("shrink", package.path, "--margin", "2")
    assert code == 130 and "interrupted: shrunk has what was proven so far" in errors
    assert "int8 static:" in out.splitlines()[0] and "Search ended" in out and "interrupted" in out
    assert open_package(Path("shrunk")).predict(package.samples.rows["x"][:2].numpy())["prediction"].shape == (2,)


def test_a_package_whose_run_is_gone_says_so(package: Package, rows: RowSets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Package, "card", {**package.card, "run": {**package.card["run"], "path": "gone"}})
    with Workshop(package, rows, "classify", isolated=False) as workshop:
        why = workshop.ask({"ask": "lessons"}, 100.0)["changes"]["prune"]["50%"]["why_not"]
    assert "can't be trained on from here" in why and "gone" in why


# ---- what is tried, in which order ----


def lessons(script: Script, **takes_s: float) -> Script:
    def asked(question: Any) -> dict[str, Any]:
        found = {name: {value: {"why_not": None, "takes_s": takes_s.get(name, 1.0)} for value in values}
                 for name, values in (("prune", ("50%", "70%")), ("distill", ("1/4",)))}  # fmt: skip
        return {"changes": found}

    script._lessons = asked  # type: ignore[attr-defined]
    return script


def speed(**factors: float) -> Callable[[ShrinkSteps, int], float]:
    """By the words of the change; of several together, the product."""

    def seconds(steps: ShrinkSteps, batch: int) -> float:
        made = 1e-3
        for step in steps:
            made /= factors.get(step["change"], 1.0) + (0.5 if step["value"] == "70%" else 0.0)
        return made

    return seconds


def named(search: Any) -> list[str]:
    return [f"{one.change} {one.value}".strip() for one in search.kept]


def test_prune_then_quantise_follows_from_the_search(tmp_path: Path) -> None:
    script = Script(tmp_path, seconds=speed(int8_static=3.0, int8_dynamic=2.0, prune=2.0, distill=1.0))
    search = search_of(lessons(script), training_s=100.0)
    receipt = search.run()
    assert named(search) == ["prune 70%", "int8_static"]
    assert any(one.name == "prune 50%, int8_static" and "replaced by" in one.why for one in receipt.entries)
    search = search_of(lessons(Script(tmp_path, seconds=speed(prune=2.0, distill=1.0))), training_s=100.0)
    search.run()
    assert named(search) == ["prune 70%"], "int8 alone does not pay here"


def test_less_is_not_tried_where_more_was_lost(tmp_path: Path) -> None:
    script = Script(tmp_path, seconds=speed(int8_static=3.0, prune=2.0, distill=1.0),
                    wrong=lambda steps: 400 if steps[0]["change"] == "prune" else 0)  # fmt: skip
    search = search_of(lessons(script), training_s=100.0)
    receipt = search.run()
    assert named(search) == ["int8_static"]
    left = next(one for one in receipt.entries if (one.name, one.value) == ("prune", "70%"))
    assert left.verdict == "untried" and "prune 50% is not proven as accurate" in left.why


def test_a_training_that_takes_too_long_is_left_out_with_the_times(tmp_path: Path) -> None:
    script = Script(tmp_path, seconds=speed(int8_static=3.0, prune=2.0, distill=9.0))
    search = search_of(lessons(script, prune=200.0, distill=50.0), training_s=100.0)
    receipt = search.run()
    assert named(search)[0] == "distill 1/4"
    left = next(one for one in receipt.entries if one.name == "prune")
    assert left.verdict == "untried" and left.why.startswith("its training takes about 3 min 20 s, and 1 min 40 s are left")


def test_a_training_that_is_killed_is_rejected_and_the_search_goes_on(tmp_path: Path) -> None:
    script = Script(tmp_path, seconds=speed(int8_static=3.0, distill=9.0),
                    fails={"prune": NoAnswer("crashed", "the trial was killed by SIGKILL")})  # fmt: skip
    search = search_of(lessons(script), training_s=100.0)
    receipt = search.run()
    assert named(search)[0] == "distill 1/4"
    assert next(one for one in receipt.entries if one.name.startswith("prune")).why.endswith("killed by SIGKILL")


def test_where_too_few_rows_can_prove_anything_no_model_is_trained(tmp_path: Path) -> None:
    script = Script(tmp_path, seconds=speed(prune=2.0), rows=300)
    receipt = search_of(lessons(script), training_s=100.0).run()
    left = next(one for one in receipt.entries if one.name == "prune")
    assert left.verdict == "untried" and "300 rows can't show a margin of 0.5 points" in left.why


def test_with_training_off_none_is_tried(tmp_path: Path) -> None:
    receipt = search_of(lessons(Script(tmp_path)), training_s=0.0).run()
    assert not any(one.name.startswith(("prune", "distill")) for one in receipt.entries)
