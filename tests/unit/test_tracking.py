"""Trackers get every number of a run, and a tracker that fails, hangs, dies or is missing does nothing to the run."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from known_machine import known_cache
from typer.testing import CliRunner

import flatout as fo
from flatout.base.errors import RecipeError, UsageError
from flatout.base.sealed import TORN, sealed
from flatout.cli.main import app
from flatout.tracking import start
from flatout.tracking.asked import Track, parse_tracks
from flatout.tracking.follow import follow, unsent
from flatout.tracking.make import make
from flatout.tracking.tracker import numbers_of

STORE = """
import os, time
from pathlib import Path
class MlflowClient:
    def __init__(self, tracking_uri=None):
        self.uri = tracking_uri
        exec(os.environ.get("TRACKER_DOES", "pass"))
    def get_experiment_by_name(self, name): return None
    def create_experiment(self, name): return "1"
    def create_run(self, *a, **k):
        class R: info = type("I", (), {"run_id": "id-7"})
        return R
    def update_run(self, run_id, status): pass
    def log_batch(self, run_id, metrics=(), params=()):
        with open(self.uri, "a") as file:
            file.writelines(f"{run_id} {m.step} {m.key} {m.value}\\n" for m in metrics)
    def set_terminated(self, run_id, status):
        with open(self.uri, "a") as file:
            file.write(f"{run_id} {status}\\n")
"""
ENTITIES = """
class Metric:
    def __init__(self, key, value, timestamp, step): self.key, self.value, self.step = key, value, step
class Param:
    def __init__(self, key, value): pass
"""


def recipe(**more: Any) -> fo.Recipe:
    keys: dict[str, Any] = {"budget": "40 steps", "evaluate": "20 steps", "lr": 3e-3, **more}
    pins = {"device": "cpu", "log_every": 5}
    return fo.Recipe(data=fo.data.digits(holdout=0.2), model="mlp", batch=64, settings=pins, **keys)


def train(runs: Path, **how: Any) -> fo.Run:
    return fo.run(recipe(), runs=runs, cache=known_cache(), planning="off", **how)


def expected(done: fo.Run) -> list[tuple[int, str, float]]:
    found = [numbers for event in done.events() if (numbers := numbers_of(event)) is not None]
    return [(one.step, name, value) for one in found for name, value in one.values.items()]


def in_csv(path: Path) -> list[tuple[int, str, float]]:
    with path.open(newline="") as file:
        return [(int(row["step"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that stands in for mlflow in the tracker's process; TRACKER_DOES is what it does first."""
    package = tmp_path / "site" / "mlflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STORE)
    (package / "entities.py").write_text(ENTITIES)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(start, "WAIT_S", 20.0)
    yield tmp_path / "store.txt"
    for name in ("mlflow", "mlflow.entities"):
        sys.modules.pop(name, None)


def in_store(path: Path) -> list[tuple[int, str, float]]:
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(int(step), name, float(value)) for _, step, name, value in (row for row in rows if len(row) == 4)]


# all of it arrives


def test_files_have_every_number_of_the_run(tmp_path: Path) -> None:
    done = train(tmp_path / "runs", track=["csv", f"jsonl={tmp_path / 'all.jsonl'}", "tensorboard"])
    assert in_csv(done.path / "tracking" / "metrics.csv") == expected(done)
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    told = [(line["step"], key, value) for line in lines for key, value in line.items() if "/" in key]
    assert told == expected(done) and {line["run"] for line in lines} == {done.name}
    assert list((done.path / "tensorboard").glob("events.out.tfevents.*")) and not done.folder.check()


def test_tensorboard_reads_its_files(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = train(tmp_path / "runs", track=f"tensorboard={tmp_path / 'board'}")
    board = reading.EventAccumulator(str(tmp_path / "board" / done.name))
    board.Reload()
    told = {(one.step, tag): one.value for tag in board.Tags()["scalars"] for one in board.Scalars(tag)}
    assert told == pytest.approx({(step, name): value for step, name, value in expected(done)}, rel=1e-6)
    assert b"| lr | 0.003 |" in board.Tensors("recipe")[0].tensor_proto.string_val[0]


def test_numbers_that_are_not_finite_and_lines_that_are_damaged(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = [0.5, float("nan"), float("inf"), -1e300, 1e-300]
    lines = [sealed({"kind": "step", "t": n, "at": 1.7e9 + n, "step": n, "loss": value}) for n, value in enumerate(values)]
    damaged = lines[0].replace(b"0.5", b"0.7")
    (tmp_path / "events.jsonl").write_bytes(
        b"\n".join([*lines, damaged, b'{"kind": "st' + TORN, b'{"kind": "step", "loss'][:8])
    )
    for track in parse_tracks(["tensorboard", "jsonl", "csv"]):
        assert follow(make(track), track, tmp_path, lambda: True) == len(values)
    board = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    shown = [one.value for one in board.Scalars("train/loss")]
    assert shown[0] == 0.5 and shown[1] != shown[1] and shown[2:] == [float("inf"), -float("inf"), 0.0]
    read = [json.loads(line)["train/loss"] for line in (tmp_path / "tracking" / "metrics.jsonl").read_text().splitlines()]
    assert read == [0.5, None, None, -1e300, 1e-300]


def test_a_resumed_run_goes_on_in_the_same_place_and_nothing_comes_twice(store: Path, tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event["kind"] == "evaluation":
            os.kill(os.getpid(), signal.SIGTERM)

    asked = [f"mlflow={store}", "csv"]
    with pytest.raises(fo.FlatoutError, match="SIGTERM"):
        train(tmp_path / "runs", track=asked, observers=[stop])
    done = train(tmp_path / "runs", track=asked)
    assert in_csv(done.path / "tracking" / "metrics.csv") == expected(done)
    assert in_store(store) == expected(done)
    ended = [line for line in store.read_text().splitlines() if len(line.split()) == 2]
    assert ended == ["id-7 KILLED", "id-7 FINISHED"]


# a tracker that does not work


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("time.sleep(600)", "did not end within 1 s"),
        ("os._exit(3)", "ended with code 3"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
    ids=["hangs", "dies", "is killed"],
)
def test_a_bad_tracker_is_a_warning_and_what_it_missed_can_be_sent(
    does: str, words: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER_DOES", does)
    monkeypatch.setattr(start, "WAIT_S", 1.0 if "sleep" in does else 20.0)
    with pytest.warns(UserWarning, match="The run is not affected") as said:
        done = train(tmp_path / "runs", track=f"mlflow={store}")
    (warning,) = (str(one.message) for one in said)
    assert words in warning and "log points were not sent" in warning and done.result["status"] == "finished"
    monkeypatch.delenv("TRACKER_DOES")
    told = CliRunner().invoke(app, ["runs", "track", str(done.path), "--track", f"mlflow={store}"], catch_exceptions=False)
    assert "sent" in told.output and in_store(store) == expected(done) and unsent(done.path, Track("mlflow", str(store))) == 0


@pytest.mark.parametrize(
    "does",
    ["p = Path({gone!r})\nif not p.exists():\n    p.touch(); raise ConnectionError('503')", "time.sleep(1.5)"],
    ids=["away", "slow"],
)
def test_a_server_that_is_away_for_a_moment_or_slow_gets_all(
    does: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER_DOES", does.format(gone=str(tmp_path / "was-away")))
    done = train(tmp_path / "runs", track=f"mlflow={store}")
    assert in_store(store) == expected(done)


def test_a_server_that_stays_away_is_said_with_its_error(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKER_DOES", "raise ConnectionError('no route to host')")
    done = train(tmp_path / "runs")
    told = CliRunner().invoke(app, ["runs", "track", str(done.path), "--track", f"mlflow={store}"])
    assert told.exit_code != 0 and "ConnectionError: no route to host" in str(told.exception)


def test_one_that_is_not_installed_is_a_warning_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.tracking.asked.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="wandb is not installed: pip install wandb"):
        done = train(tmp_path / "runs", track=["wandb=project", "csv"])
    assert in_csv(done.path / "tracking" / "metrics.csv") == expected(done)


def test_a_folder_that_vanishes_ends_the_tracker_alone(tmp_path: Path) -> None:
    track = Track("csv")
    with pytest.raises(FileNotFoundError, match="gone"):
        follow(make(track), track, tmp_path / "gone", lambda: True, patient=False)
    assert not (tmp_path / "gone").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").touch()
    with pytest.raises(FileNotFoundError):  # while it is followed
        follow(make(track), track, tmp_path / "run", lambda: shutil.rmtree(tmp_path / "run"), patient=False)


@pytest.mark.parametrize(
    ("written", "words"),
    [(["tensorbord"], "did you mean 'tensorboard'"), (["mlflow="], "names no place"), (["comet"], "no tracker 'comet'")],
)
def test_a_tracker_that_does_not_exist_stops_before_training(written: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        train(tmp_path / "runs", track=written)
    assert not (tmp_path / "runs").exists()


def test_trackers_of_a_recipe_are_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    first = fo.run(recipe(track=["csv"]), runs=tmp_path, cache=known_cache(), planning="off")
    assert (first.path / "tracking" / "metrics.csv").exists()
    about = [
        fo.run(recipe(track=more), runs=tmp_path, cache=known_cache(), planning="off").folder.about for more in ([], ["jsonl"])
    ]
    assert {one["identity"] for one in about} == {first.folder.about["identity"]}
    with pytest.raises(RecipeError, match="track: expected a list"):
        recipe(track="csv")


def test_real_mlflow_has_every_number_of_the_run(tmp_path: Path) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    place = f"sqlite:///{tmp_path}/mlflow.db"
    done = train(tmp_path / "runs")
    track = Track("mlflow", place)
    follow(make(track), track, done.path, lambda: True, patient=False)
    client = mlflow.MlflowClient(tracking_uri=place)
    (run,) = client.search_runs([client.get_experiment_by_name("flatout").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["lr"] == "0.003"
    for name in {name for _, name, _ in expected(done)}:
        told = {one.step: one.value for one in client.get_metric_history(run.info.run_id, name)}
        assert told == pytest.approx({step: value for step, key, value in expected(done) if key == name})


def test_real_wandb_writes_the_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = train(tmp_path / "runs")
    track = Track("wandb", "project")
    follow(make(track), track, done.path, lambda: True, patient=False)
    assert list((done.path / "wandb").glob("offline-run-*/*.wandb"))


# functions of one's own


def test_own_functions_get_the_event_and_the_run(tmp_path: Path) -> None:
    seen: list[tuple[str, Any]] = []

    def on_evaluation(event: dict[str, Any], run: fo.Run) -> None:
        event["metrics"]["mine"] = 1.0  # it is a copy
        seen.append((run.name, event["step"]))

    done = train(
        tmp_path, on={"evaluation": on_evaluation, "finished": lambda event, run: seen.append(("end", event["steps"]))}
    )
    assert seen == [(done.name, 20), (done.name, 40), ("end", 40)]
    assert all("mine" not in event["metrics"] for event in done.events() if event["kind"] == "evaluation")


def test_an_error_in_an_own_function_is_one_warning_with_its_line(tmp_path: Path) -> None:
    calls: list[int] = []

    def broken(event: dict[str, Any], run: fo.Run) -> None:
        calls.append(event["step"])
        raise KeyError("plot")  # the line that is named

    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "that is named" in text)
    with pytest.warns(UserWarning, match="the run goes on") as said:
        done = train(tmp_path, on={"step": broken})
    assert done.result["status"] == "finished" and len(calls) > 2 and len(said) == 1
    assert "KeyError: 'plot'" in str(said[0].message) and f'{__file__}", line {line}' in str(said[0].message)


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ({"evalution": lambda event, run: None}, "did you mean 'evaluation'"),
        ({"step": "print"}, "must be a function of the event and the run"),
        ({"step": lambda event: None}, "must take two arguments"),
    ],
)
def test_wrong_functions_stop_before_training(on: dict[str, Callable[..., Any]], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words), warnings.catch_warnings():
        train(tmp_path / "runs", on=on)
    assert not (tmp_path / "runs").exists()
