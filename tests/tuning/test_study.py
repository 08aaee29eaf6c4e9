"""A study in this process: what comes of it, what goes on, what is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from stacking import recipe, table

import flatout as fo
from flatout.base.errors import RunBusy, Stopped, StoreError, TrainingError, UsageError
from flatout.base.events import read_events
from flatout.store.lock import FileLock
from flatout.tuning.crew.crew import TrialCrew
from flatout.tuning.search.search import TrialSearch
from flatout.tuning.study.driver import Driver
from flatout.tuning.study.finals import RECIPE
from flatout.tuning.study.folder import StudyFolder
from flatout.tuning.study.outcome import Study
from flatout.tuning.training import layout
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.layout import STACKED, Layout
from flatout.tuning.training.proof import StackProof
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.views.doc import study_doc

SPACE = {"lr": "1e-4..3e-1"}


def tuned(base: fo.Recipe, runs: Path, space: Any = SPACE, **given: Any) -> fo.Study:
    return fo.tune(base, space, runs=runs, cache=None, **{"trials": 4, **given})


def small(**changed: Any) -> fo.Recipe:
    return recipe(**{"model": {"mlp": {"hidden": [8]}}, "budget": "16 steps", **changed})


def rungs(study: fo.Study) -> list[Mapping[str, Any]]:
    return [event for event in study.folder.events() if event["kind"] == "rung"]


def scores(study: fo.Study) -> list[Any]:
    """Everything that a study found, but no times."""
    return [[event["to"], event["trials"], event["scores"], event["failed"]] for event in rungs(study)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study of four trials, not to be changed."""
    runs = tmp_path_factory.mktemp("finished")
    tuned(small(), runs)
    return runs


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> fo.Study:
    """A copy of that study."""
    shutil.copytree(finished, tmp_path / "runs")
    return the_study(tmp_path / "runs")


def the_study(runs: Path) -> fo.Study:
    (path,) = runs.glob("*-tuned-*")
    return Study(StudyFolder(path), small())


def test_trials_that_were_slower_than_they_could_be_are_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a step of a stack was captured while the layouts were measured, and later can't be."""
    for kind in (TrialStack, Alone):
        monkeypatch.setattr(kind, "degraded", "no CUDA graph: it was refused")
    monkeypatch.setattr(layout, "_aside", lambda best, stacks: "")
    study = tuned(small(), tmp_path)
    assert len(rungs(study)) > 1 and study.result["degraded"] == ["no CUDA graph: it was refused"]
    (event,) = [event for event in study.folder.events() if event["kind"] == "degraded"]
    assert event["why"] == study.result["degraded"][0]
    assert "slower than it could be: no CUDA graph" in str(study_doc(study.folder))


def test_the_best_recipe_trains(tmp_path: Path) -> None:
    study = tuned(small(lr=1e-4), tmp_path)
    result = study.result
    assert result["trials"] == 4 and 1 <= result["finished_trials"] <= 4
    assert result["better_than_recipe"] is True and result["gain"]["low"] > 0
    assert study.best.recipe.lr == study.best.point["lr"] > 1e-4
    assert study.best.interval[0] <= study.best.score <= study.best.interval[1]
    assert len(result["scores"]) == 8 and study.name in str(study) and "lr" in repr(study)
    run = fo.run(study.best.recipe, runs=tmp_path, cache=None, planning="off", quiet=True)
    assert run.result["metrics"]["accuracy"] == pytest.approx(study.best.score, abs=0.25)


def test_a_model_object_and_arrays_in_memory(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    base = fo.Recipe(
        data={"arrays": table(), "holdout": 0.3}, model=model, batch=16, lr=1e-3, budget="16 steps", settings={"device": "cpu"}
    )
    study = tuned(base, tmp_path, {"lr": (1e-3, 1e-1), "clip": [0.5, 5.0]})
    assert study.result["metric"] == "accuracy"
    assert all(value.equal(before[name]) for name, value in model.state_dict().items()), "the user's own model was trained"
    assert not study.folder.best_path.exists()  # the model is only here


def test_the_same_call_gives_the_same_study(copied: fo.Study) -> None:
    one, other = copied, tuned(small(), copied.path.parent)
    assert one.name != other.name  # the first was finished
    assert scores(one) == scores(other) and one.result["winner"] == other.result["winner"]
    assert one.result["scores"] == other.result["scores"]


@pytest.mark.parametrize("after", [1, 3])
def test_a_stopped_study_goes_on_to_the_same_end(
    after: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = the_study(finished)
    trained, count = Driver._trained, [0]

    def dies(self: Driver, rung: Any) -> Any:
        if count[0] == after:
            raise SystemExit(9)
        count[0] += 1
        return trained(self, rung)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Driver, "_trained", dies)
        tuned(small(), tmp_path / "runs")
    said: list[str] = []
    study = tuned(small(), tmp_path / "runs", say=said.append)
    assert study.name.endswith("-1") and any("going on" in line for line in said)
    assert scores(study) == scores(whole) and study.result["scores"] == whole.result["scores"]


def test_what_is_measured_in_a_rung_changes_nothing_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second group is met, and found to be trained fastest in wide stacks, when the first wave has been asked for."""
    widths = iter([2, 64] * 2)

    def measured(self: TrialCrew, trials: Any, limit_s: float) -> Layout:
        return Layout(STACKED, next(widths), 1, rates={"stacked": 100.0}, nearly_free=4, measured_with=len(trials))

    monkeypatch.setattr(TrialCrew, "measure_layout", measured)
    monkeypatch.setattr("flatout.tuning.study.finals._SIZES", ((1, 1, 3),))
    space = {**SPACE, "model.hidden": [[8], [16]]}
    whole = tuned(small(), tmp_path / "runs", space, trials=20)
    log = whole.folder.log_path
    lines = log.read_text().splitlines(keepends=True)
    second = [place for place, line in enumerate(lines) if '"rung"' in line][1]
    expected = scores(whole)
    log.write_text("".join(lines[: second + 1]))
    (whole.path / "result.json").unlink()
    again = tuned(small(), tmp_path / "runs", space, trials=20)
    assert again.name == whole.name and scores(again) == expected


def test_a_torn_line_is_trained_again(copied: fo.Study) -> None:
    study = copied
    expected = scores(study)
    log, lines = study.folder.log_path, study.folder.log_path.read_bytes().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if b'"rung"' in line)
    log.write_bytes(b"".join(lines[:last]) + lines[last][:40])
    (study.path / "result.json").unlink()
    assert scores(tuned(small(), study.path.parent)) == expected


@pytest.mark.parametrize("change", ["removed", "other numbers", "other points", "other steps", "no checksum", "cut"])
def test_a_log_that_does_not_fit_is_an_error(change: str, copied: fo.Study) -> None:
    study = copied
    log = study.folder.log_path
    lines = log.read_text().splitlines()
    first = next(place for place, line in enumerate(lines) if '"rung"' in line)
    event = {name: value for name, value in json.loads(lines[first]).items() if name not in ("sum", "crc", "seal", "check")}
    if change == "removed":
        del lines[first]
    else:
        if change == "other numbers":
            event["trials"] = [[number + 1, point] for number, point in event["trials"]]
        elif change == "other points":
            event["trials"] = [[number, {"lr": 0.5}] for number, point in event["trials"]]
        elif change == "other steps":
            event["to"] += 1
        elif change == "no checksum":
            del event["scores"]
        lines[first] = json.dumps(event) if change != "cut" else "{"
    log.write_text("\n".join(lines) + "\n")
    (study.path / "result.json").unlink()
    with pytest.raises(StoreError, match="--fresh"):
        tuned(small(), study.path.parent)


def test_another_format_is_an_error(copied: fo.Study) -> None:
    study, tmp_path = copied, copied.path.parent
    path = study.path / "study.json"
    path.write_text(path.read_text().replace('"flatout_study": 1', '"flatout_study": 99'))
    with pytest.raises(StoreError, match="99"):
        tuned(small(), tmp_path)


def test_more_trials_extend_a_finished_study(copied: fo.Study) -> None:
    first, tmp_path = copied, copied.path.parent
    before = scores(first)
    more = tuned(small(), tmp_path, trials=9)
    assert more.name == first.name and more.result["trials"] == 9
    assert scores(more)[: len(before)] == before
    most = tuned(small(), tmp_path, trials=12)
    assert most.name == first.name and most.result["trials"] == 12
    assert tuned(small(), tmp_path, trials=8).name != first.name


def test_a_larger_budget_extends_a_finished_study(tmp_path: Path) -> None:
    first = tuned(small(), tmp_path, trials=None, budget="6 s")
    seconds = first.result["seconds"]
    more = tuned(small(), tmp_path, trials=None, budget="12 s")
    assert more.name == first.name
    assert more.result["trials"] >= first.result["trials"] and more.result["seconds"] > seconds
    assert tuned(small(), tmp_path, trials=2, budget="7 s").name != first.name


def test_a_budget_that_measuring_has_spent_still_gives_a_winner(tmp_path: Path) -> None:
    study = tuned(small(), tmp_path, trials=None, budget="0.2 s")
    assert [event["trials"] for event in rungs(study) if event.get("beyond")] and study.result["finished_trials"] == 1
    more = tuned(small(), tmp_path, trials=None, budget="6 s")
    assert more.name == study.name and more.result["finished_trials"] > 1


def test_a_budget_shorter_than_a_trial_is_said(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="--budget"):
        tuned(small(budget="200000 steps"), tmp_path, trials=None, budget="0.2 s")


def test_ctrl_c_judges_the_best_so_far_and_the_study_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tuned(small(), tmp_path / "whole", trials=8)
    following = TrialSearch.next

    def interrupted(self: TrialSearch) -> Any:
        if self.best(1):
            raise KeyboardInterrupt
        return following(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrialSearch, "next", interrupted)
        study = tuned(small(), tmp_path / "runs", trials=8)
    assert study.result["stopped"] == "Ctrl-C" and len(study.result["scores"]) == 8
    after = tuned(small(), tmp_path / "runs", trials=8)
    assert after.name == study.name and not after.result["stopped"]
    assert scores(after) == scores(whole)


def test_ctrl_c_before_a_trial_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Driver, rung: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Driver, "_trained", interrupted)
    with pytest.raises(Stopped) as stopped:
        tuned(small(), tmp_path)
    assert stopped.value.exit_code == 130


def test_a_second_process_changes_nothing(copied: fo.Study) -> None:
    study, tmp_path = copied, copied.path.parent
    (study.path / "result.json").unlink()
    before = {path: path.read_bytes() for path in study.path.rglob("*.json*")}
    lock = FileLock(study.path / "lock")
    assert lock.take()
    with pytest.raises(RunBusy, match="--fresh"):
        tuned(small(), tmp_path, trials=40)
    assert {path: path.read_bytes() for path in study.path.rglob("*.json*")} == before
    assert tuned(small(), tmp_path, fresh=True).name != study.name
    lock.release()


def test_a_recipe_that_always_diverges_is_worse_than_any_winner(tmp_path: Path) -> None:
    study = tuned(small(lr=1e30, optimizer="sgd"), tmp_path, {"lr": "1e-3..1e-1"})
    assert study.result["winner"]["number"] != RECIPE
    assert study.result["better_than_recipe"] is True and study.result["recipe_scores"] == []
    assert study.name in str(study)


def test_the_recipe_itself_may_win(tmp_path: Path) -> None:
    study = tuned(small(lr=0.02), tmp_path, {"lr": "1e-8..1e-7"})
    assert study.result["winner"]["number"] == RECIPE and study.result["winner"]["overrides"] == []
    assert study.best.recipe.lr == 0.02


def test_when_all_trials_fail_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="diverged"):
        tuned(small(optimizer="sgd"), tmp_path, {"lr": "1e30..1e32"})


@pytest.mark.parametrize("trouble", ["raises", "memory"])
def test_only_the_trials_in_trouble_fail(trouble: str, tmp_path: Path) -> None:
    asked = small(model={"own_models:troubled": {"width": 8, "trouble": trouble}})
    study = tuned(asked, tmp_path / "some", {"model.width": [8, 12, 13, 16]})
    words = {"raises": "13 brings bad luck", "memory": "out of memory"}[trouble]
    ((why, count),) = study.result["failed"].items()
    assert count == 1 and words in why
    without = tuned(asked, tmp_path / "none", {"model.width": [8, 12, 16]}, trials=3)

    def by_width(study: fo.Study) -> dict[Any, Any]:
        return {
            point["model.width"]: score
            for event in rungs(study)
            for number, point in event["trials"]
            if (score := event["scores"][str(number)]) is not None and event["to"] == 16
        }

    ours, theirs = by_width(study), by_width(without)
    assert ours and all(ours[width] == theirs[width] for width in ours.keys() & theirs.keys())


def test_a_metric_that_never_changes(tmp_path: Path) -> None:
    data = table()
    data["y"] = data["x"][:, 0] * 0 + 1.5
    study = tuned(small(data={"arrays": data, "holdout": 0.3}, objective="regress", metrics=["r2"]), tmp_path, metric="loss")
    assert study.result["metric"] == "loss"


@pytest.mark.parametrize(
    ("changed", "given", "words"),
    [
        ({}, {"trials": 0}, "trials"),
        ({}, {"budget": "20 epochs"}, "--trials"),
        ({}, {"budget": "5 USD"}, "price_per_hour"),
        ({}, {"budget": "soon"}, "budget"),
        ({}, {"metric": "beauty"}, "beauty"),
        ({}, {"space": {"lr": "1e-2..1e-4"}}, "reversed"),
        ({}, {"space": {"lr": "1e-2..1e-2"}}, "empty"),
        ({}, {"space": {"model.hiden": [1, 2]}}, "hiden"),
        ({}, {"space": {"lr": ["a", "b"]}}, "lr"),
        ({}, {"space": {}}, "empty"),
        ({"data": table()}, {}, "holdout"),
        ({"budget": "10 s"}, {}, "--budget"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        tuned(small(**changed), tmp_path, **given)
    assert not [path for path in tmp_path.rglob("study.json")]


def test_states_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the study goes on, and says that it could not save."""
    from flatout.store.checkpoints import Checkpoints
    from flatout.tuning.study import saving

    def full(self: Checkpoints, *given: Any) -> None:
        raise StoreError("no space left on device")

    monkeypatch.setattr(saving, "LEAST_S", 0.0)
    monkeypatch.setattr(saving, "_SHARE", math.inf)
    monkeypatch.setattr(Checkpoints, "write", full)
    study = tuned(small(), tmp_path)
    assert any(event["kind"] == "not_saved" and "no space" in event["why"] for event in read_events(study.folder.log_path))


def test_nan_of_a_metric_is_a_failed_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TrialStack.metrics
    monkeypatch.setattr(
        TrialStack, "metrics",
        lambda self, which="choose": {
            number: {"accuracy": math.nan if number == 2 else metrics["accuracy"]}
            for number, metrics in right(self, which).items()
        },
    )  # fmt: skip
    monkeypatch.setattr("flatout.tuning.training.layout._BETTER", 0.0)
    monkeypatch.setattr("flatout.tuning.training.layout.prove", lambda group, ones: StackProof(True))
    study = tuned(small(), tmp_path)
    assert study.result["failed"] == {"its accuracy is not a finite number": 1}
