"""What a study shows of itself: as text, JSON, a page, a row of a list, and a journal of Optuna."""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flatout.base.errors import UsageError
from flatout.base.events import EventLog
from flatout.base.html import to_html
from flatout.base.tree import to_data, to_text
from flatout.cli.ahead import StudyEndAhead
from flatout.cli.main import app
from flatout.cli.study_progress import LiveStudy, rung_line
from flatout.cli.study_state import StudyState
from flatout.tuning.study.folder import StudyFolder, create_study
from flatout.tuning.views.doc import study_doc
from flatout.tuning.views.history import read_history
from flatout.tuning.views.importance import importance_of
from flatout.tuning.views.journal import write_journal
from flatout.tuning.views.words import short_keys, value_text

EVIL = "<script>alert(1)</script>"
WHOLE = 160
SPACE = {
    "lr": {"low": 1e-4, "high": 0.1, "log": True, "whole": False},
    "weight_decay": {"mixture": [0, {"low": 1e-5, "high": 0.1, "log": True, "whole": False}]},
    "model.hidden": {"choices": [[16], [64, 64]]},
}
Trained = tuple[int, Mapping[str, Any], float | None]  # a trial's number, point, and score


def study(
    runs: Path, space: Mapping[str, Any] = SPACE, *, metric: str = "accuracy", higher: bool = True, source: str | None = None
) -> StudyFolder:
    about = {"metric": metric, "higher_is_better": higher, "total_steps": WHOLE, "judged_on": "half of 500 rows"}
    return create_study(
        runs,
        "mlp",
        {"identity": "x", "space": space, "seed": 0, "about": about, "source": source, "trials": 30, "budget": None},
    )


def write(folder: StudyFolder, *rungs: tuple[int, Sequence[Trained]]) -> None:
    with EventLog(folder.log_path) as log:
        log.emit("begun", budget=None, trials=30, isolated=True)
        layout = {"kind": "stacked", "why": "900 trial-steps/s", "proof": "equal to trials alone", "rates": {}}
        log.emit("layout", group=json.dumps({"model": {"mlp": {"hidden": [64]}}}), layout=layout, trials=3)
        for place, (to, trained) in enumerate(rungs, 1):
            log.emit(
                "rung", to=to, trials=[[number, point] for number, point, _ in trained], lost=[], share=0.1 * place,
                scores={str(number): score for number, _, score in trained}, seconds=1.0, training_s=0.5,
                failed={str(number): "the loss is not finite" for number, _, score in trained if score is None},
                spent={"seconds": 10.0 * place, "joules": 0.0},
            )  # fmt: skip


def finish(folder: StudyFolder, winner: int, gain: float, better: bool | None, *, metric: str = "accuracy") -> None:
    interval = {"mean": 0.9, "low": 0.88, "high": 0.92, "n": 4}
    folder.finish(
        {
            "metric": metric, "higher_is_better": metric == "accuracy", "judged_on": "half of 500 rows", "again": interval,
            "recipe": interval, "gain": {"mean": gain, "low": gain - 0.01, "high": gain + 0.01, "n": 4},
            "scores": [0.9, 0.91, 0.89, 0.9], "recipe_scores": [0.9, 0.9, 0.88, 0.9], "chosen_by": {"3": 0.9, "-1": 0.95},
            "winner": {"number": winner, "point": point(winner) if winner >= 0 else {}, "overrides": ["lr=0.1"]},
            "trials": 4, "score_in_search": 0.95 if winner >= 0 else None, "better_than_recipe": better, "seconds": 60.0,
            "expected_gain_in_an_hour": 0.01, "training_s": 30.0, "first_rung": "10 of 160 steps", "stopped": "",
            "lost_processes": [],
        }
    )  # fmt: skip


def point(number: int) -> dict[str, Any]:
    decay = 0 if number % 3 == 0 else round(1e-5 * 1.3 ** (number % 30), 9)
    return {
        "lr": round(1e-4 * 1.2 ** (number % 30), 7),
        "weight_decay": decay,
        "model.hidden": [16] if number % 2 else [64, 64],
    }


def trained(count: int, *, plus: float = 0.0) -> list[Trained]:
    """The score rises with the learning rate alone."""
    return [(number, point(number), 0.5 + 0.01 * (number % 30) + plus) for number in range(count)]


def halved(runs: Path, **more: Any) -> StudyFolder:
    """24 trials, half of them trained whole; one failed."""
    folder = study(runs, **more)
    write(folder, (20, [*trained(23), (23, point(23), None)]), (WHOLE, trained(23, plus=0.2)[11:]))
    return folder


def pictures(page: str) -> list[str]:
    return [b64decode(found).decode() for found in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)]


def page_of(folder: StudyFolder) -> str:
    return to_html(study_doc(folder), folder.name)


def test_a_finished_study_says_first_what_the_winner_is_worth(tmp_path: Path) -> None:
    for winner, gain, better, word in (
        (3, 0.03, True, "BETTER"),
        (3, -0.03, False, "WORSE"),
        (3, 0.002, None, "NO CLEAR DIFFERENCE"),
        (-1, 0.0, None, "NO IMPROVEMENT"),
    ):
        folder = halved(tmp_path)
        finish(folder, winner, gain, better)
        text = to_text(study_doc(folder))
        assert word in text and text.index(word) < text.index("steps"), text
        assert [other for other in ("BETTER:", "WORSE:", "NO CLEAR", "NO IMPROV") if other in text] == [
            next(one for one in ("BETTER:", "WORSE:", "NO CLEAR", "NO IMPROV") if one.startswith(word[:5]))
        ]


def test_json_has_every_trial_with_its_scores_by_step(tmp_path: Path) -> None:
    folder = halved(tmp_path)
    finish(folder, 22, 0.03, True)
    data = to_data(study_doc(folder))
    by_number = {one["number"]: one for one in data["trials"]}
    assert len(by_number) == 24 and by_number[22]["scores"] == {20: pytest.approx(0.72), WHOLE: pytest.approx(0.92)}
    assert {by_number[number]["state"] for number in (22, 2, 23)} == {"whole", "dropped", "failed"}
    assert by_number[23]["failed"] and data["result"]["winner"]["number"] == 22
    assert data["asked"]["space"] == SPACE and len(data["rungs"]) == 2 and len(data["layouts"]) == 1


def test_importance_is_of_one_step_and_finds_the_parameter_that_counts(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    folder = halved(tmp_path)
    found = to_data(study_doc(folder))["importance"]
    assert found["step"] == 20 and found["trials"] == 23  # twelve at the last step are too few
    assert next(iter(found["shares"])) == "lr" and math.isclose(sum(found["shares"].values()), 1)
    few = study(tmp_path)
    write(few, (20, trained(19)))
    assert not to_data(study_doc(few))["importance"]["shares"]
    assert "importance" not in to_text(study_doc(few))


def test_importance_is_known_before_the_winner_is_judged(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    folder, ahead = halved(tmp_path), StudyEndAhead()
    ahead({"kind": "begun", "folder": str(folder.path)})
    ahead({"kind": "finals"})
    assert ahead.importance == importance_of(read_history(folder), folder.space) and ahead.importance is not None
    assert to_data(study_doc(folder, ahead.importance)) == to_data(study_doc(folder))


def test_without_optuna_importance_and_journals_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("importance", "journal"):
        monkeypatch.setattr(f"flatout.tuning.views.{module}.find_spec", lambda name: None)
    folder = halved(tmp_path)
    assert "flatout[tune]" in to_text(study_doc(folder))
    with pytest.raises(UsageError, match="tune"):
        write_journal(folder, tmp_path / "journal.log")


def test_parameters_that_only_some_trials_have(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    space = {
        "optimizer": {"choices": ["sgd", "adamw"]},
        "momentum": {"low": 0.0, "high": 0.99, "log": False, "whole": False, "if": {
            "key": "optimizer", "relation": "is", "values": ["sgd"]}},
        "warmup": {"mixture": ["none", {"low": 10, "high": 100, "log": True, "whole": True}]},
        "flags": {"choices": [True, 1, None, "on"]},
    }  # fmt: skip
    points: list[dict[str, Any]] = [
        {"optimizer": "sgd", "momentum": 0.9, "warmup": "none", "flags": True},
        {"optimizer": "adamw", "warmup": 30, "flags": 1},
        {"optimizer": "adamw", "warmup": 10, "flags": None},
    ]
    folder = study(tmp_path, space)
    write(folder, (WHOLE, [(number, points[number % 3], number / 30) for number in range(30)]))
    assert set(to_data(study_doc(folder))["importance"]["shares"]) == set(space)
    by_title = {ElementTree.fromstring(one)[0].text: one for one in pictures(page_of(folder))}
    assert by_title["accuracy by momentum"].count("<circle") == 10
    write_journal(folder, tmp_path / "journal.log")
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log"))
    loaded = optuna.load_study(study_name=folder.name, storage=optuna.storages.JournalStorage(backend))
    assert [one.params for one in loaded.trials[:3]] == [
        {"optimizer": "sgd", "momentum": 0.9, "warmup": "none", "flags": "true"},
        {"optimizer": "adamw", "warmup": 30, "flags": "1"},
        {"optimizer": "adamw", "warmup": 10, "flags": "null"},
    ]


@pytest.mark.parametrize("rungs", [[], [(20, trained(1))], [(20, [(0, point(0), None), (1, point(1), None)])]])
def test_unfinished_studies_of_any_size_can_be_shown(tmp_path: Path, rungs: list[tuple[int, list[Trained]]]) -> None:
    folder = study(tmp_path)
    write(folder, *rungs)
    assert "unfinished" in to_text(study_doc(folder))
    assert all(ElementTree.fromstring(one) is not None for one in pictures(page_of(folder)))


def test_without_a_log_a_study_is_empty(tmp_path: Path) -> None:
    folder = study(tmp_path)
    assert to_data(study_doc(folder))["trials"] == [] and pictures(page_of(folder)) == []


def test_a_damaged_line_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = halved(tmp_path)
    lines = folder.log_path.read_text().splitlines(keepends=True)
    lines[-1] = lines[-1].replace('"to": 160', '"to": 999')
    folder.log_path.write_text("".join(lines) + '{"kind": "rung", "to": 1')  # and a torn one, which a kill leaves
    data = to_data(study_doc(folder))
    assert len(data["damaged"]) == 1 and len(data["trials"]) == 24 and data["trials"][0]["step"] == 20
    assert "Damaged" in to_text(study_doc(folder))


def test_scores_that_are_no_numbers_are_failures(tmp_path: Path) -> None:
    folder = study(tmp_path, metric="loss", higher=False)
    write(folder, (WHOLE, [(0, point(0), math.inf), (1, point(1), math.nan), (2, point(2), 0.3)]))
    trials = to_data(study_doc(folder))["trials"]
    assert [one["state"] for one in trials] == ["whole", "failed", "failed"] and trials[0]["number"] == 2
    assert all("nan" not in one and "inf" not in one for one in pictures(page_of(folder)))


def test_all_trials_failed(tmp_path: Path) -> None:
    folder = study(tmp_path)
    write(folder, (20, [(number, point(number), None) for number in range(5)]))
    text = to_text(study_doc(folder))
    assert "5 x the loss is not finite" in text and pictures(page_of(folder)) == []


def test_no_line_is_wider_than_100_columns(tmp_path: Path) -> None:
    model = {"gpt": {"layers": 12, "heads": 12, "width": 768, "context": 1024, "activation": "gelu", "tied": True}}
    space: dict[str, Any] = {f"model.some_quite_long_name.of_parameter_{place}": SPACE["lr"] for place in range(8)}
    space["model"] = {"choices": [model, {"mlp": {"hidden": [64, 64]}}]}
    long = {**{key: 0.0001234 for key in space}, "model": model}
    folder = study(tmp_path, space)
    write(folder, (20, [(number, long, 0.1 + number / 100) for number in range(30)]))
    for done in (False, True):
        if done:
            finish(folder, 3, 0.02, None)
        text = to_text(study_doc(folder))
        assert max(map(len, text.splitlines())) <= 100
        assert "parameter_7" in text and "(" in text
    eight = study(tmp_path, {f"p{place}": SPACE["lr"] for place in range(8)})
    write(eight, (20, [(0, {f"p{place}": 1.234e-05 for place in range(8)}, 0.5)]))
    assert max(map(len, to_text(study_doc(eight)).splitlines())) <= 100


def test_values_and_keys_are_shortened_without_becoming_alike() -> None:
    assert value_text({"mlp": {"hidden": [64, 64], "bias": True}}, 80) == "{mlp: {hidden: [64, 64], bias: on}}"
    assert len(value_text(list(range(99)))) == 24
    gpts = [{"gpt": {"layers": layers, "heads": 12, "width": 768, "context": 1024}} for layers in (6, 12)]
    assert [value_text(one, 16) for one in gpts] == ["gpt layers=6 ...", "gpt layers=12..."]
    assert short_keys(["lr", "model.a.width", "model.b.width", "model.b.depth"]) == {
        "lr": "lr", "model.a.width": "a.width", "model.b.width": "b.width", "model.b.depth": "depth",
    }  # fmt: skip
    assert short_keys(["rate", "model.rate"]) == {"rate": "rate", "model.rate": "model.rate"}


def test_the_page_is_whole_on_its_own_and_escapes_names(tmp_path: Path) -> None:
    space = {**SPACE, EVIL: {"choices": [EVIL, "plain"]}}
    folder = study(tmp_path, space, metric=EVIL)
    write(folder, (20, [(number, {**at, EVIL: EVIL}, score) for number, at, score in trained(25)]))
    finish(folder, 3, 0.02, True, metric=EVIL)
    page = page_of(folder)
    assert "<script" not in page and "http://" not in page and "https://" not in page
    drawn = pictures(page)
    assert len(drawn) >= 8
    for one in drawn:
        assert "<script" not in one and ElementTree.fromstring(one).tag.endswith("svg")
        assert "prefers-color-scheme:dark" in one


def test_pictures_mark_dropped_and_failed_trials_and_the_winner(tmp_path: Path) -> None:
    folder = halved(tmp_path)
    finish(folder, 22, 0.03, True)
    by_title = {ElementTree.fromstring(one)[0].text: one for one in pictures(page_of(folder))}
    history, curves = by_title["Optimisation history"], by_title["Learning curves of trials"]
    assert history.count('class="ring"') == 11 and history.count('class="dot"') == 12 and history.count('class="cross"') == 2
    assert curves.count('class="line"') == 11 and curves.count('class="best"') == 1
    assert by_title["Final trainings"].count('class="dot"') == 8
    assert by_title["Parallel coordinates"].count("<polyline") == 12


def test_a_study_is_listed_and_shown_by_name_folder_and_last_study(tmp_path: Path) -> None:
    halved(tmp_path)
    newest = halved(tmp_path)
    finish(newest, 22, 0.03, True)
    runs = ["--runs", str(tmp_path)]
    listed = json.loads(CliRunner().invoke(app, ["runs", *runs, "--json"]).stdout)
    assert [(one["name"], one["status"], one["trials"], one["score"]) for one in listed["studies"]] == [
        ("mlp-tuned-1", "unfinished", 24, None),
        ("mlp-tuned-2", "finished", 24, 0.9),
    ]
    for name in ("mlp-tuned-2", str(newest.path), "last-study"):
        assert json.loads(CliRunner().invoke(app, ["runs", "show", name, *runs, "--json"]).stdout)["name"] == "mlp-tuned-2"
    assert CliRunner().invoke(app, ["runs", "show", "last", *runs]).exit_code != 0  # the last run, and there is none
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["runs", "show", "mlp-tuned-1", *runs, "--html", str(page)]).exit_code == 0
    assert len(pictures(page.read_text())) >= 5


def test_a_damaged_study_does_not_hide_the_others(tmp_path: Path) -> None:
    broken = halved(tmp_path)
    halved(tmp_path)
    (broken.path / "study.json").write_text('{"flatout_study": 1, "created"')
    found = json.loads(CliRunner().invoke(app, ["runs", "--runs", str(tmp_path), "--json"]).stdout)
    assert {one["status"] for one in found["studies"]} == {"damaged", "unfinished"} and len(found["damaged_studies"]) == 1


def test_the_journal_has_every_trial_as_optuna_would_have_written_it(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    folder, path = halved(tmp_path), tmp_path / "journal.log"
    finish(folder, 22, 0.03, True)
    for _ in range(2):  # written again, it is replaced
        asked = ["runs", "show", folder.name, "--runs", str(tmp_path), "--optuna", str(path)]
        assert CliRunner().invoke(app, asked).exit_code == 0
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    loaded = optuna.load_study(study_name=folder.name, storage=storage)
    assert [one.number for one in loaded.trials] == list(range(24)) and loaded.best_trial.number == 22
    best, dropped, failed = loaded.trials[22], loaded.trials[2], loaded.trials[23]
    assert best.state == TrialState.COMPLETE and best.value == pytest.approx(0.92)
    assert best.params == {**point(22), "model.hidden": "[64, 64]"} and best.distributions["lr"].log
    assert best.intermediate_values == {20: pytest.approx(0.72), WHOLE: pytest.approx(0.92)}
    assert dropped.state == TrialState.PRUNED and list(dropped.intermediate_values) == [20]
    assert failed.state == TrialState.FAIL and failed.user_attrs["failed"]


def test_the_live_table_fits_its_terminal_and_counts_trials(tmp_path: Path) -> None:
    folder = halved(tmp_path)
    events = folder.events()
    for width in (80, 120):
        console = Console(width=width, record=True, force_terminal=True, file=(tmp_path / "out").open("w"))
        view = LiveStudy(console)
        console.print(view.shown())
        for event in events:
            view(event)
        view({"kind": "resumed", "budget": "10 min", "trials": None, "folder": str(study(tmp_path, metric="f1").path)})
        view(events[-1])
        console.print(view.shown())
        console.file.close()
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width and any("of 10 min 00 s" in line for line in lines)
        assert any("12 done, 0 alive, 11 dropped, 1 failed" in line for line in lines)


def test_progress_knows_which_scores_are_better(tmp_path: Path) -> None:
    folder = halved(tmp_path, metric="loss", higher=False)
    state = StudyState(lambda: 100.0)
    state.hear({"kind": "resumed", "budget": "100 s", "trials": None, "folder": str(folder.path)})
    assert state.best is not None and state.best[:2] == (11, WHOLE)
    assert state.time_line() == "20 s, 20% of 1 min 40 s, about 1 min 20 s left"
    line = rung_line(state, folder.events()[-1])
    assert line is not None and "loss 0.8100 to 0.9200" in line and len(line) <= 100
