"""`flatout tune` as a command: what it prints, how it ends, what it leaves behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from interpreters import ForkedPython, piped, run_forked
from stacking import DIGITS, table

from flatout.base.events import read_events

RECIPE = {**DIGITS, "budget": "16 steps"}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return written(tmp_path, RECIPE)


def written(folder: Path, keys: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join(sys.path)
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)}


def arguments(path: Path, *more: str) -> list[str]:
    return ["-m", "flatout", "tune", str(path), "--runs", str(path.parent / "runs"), *more]


def tuned(path: Path, *more: str, space: str = "lr=1e-4..3e-1") -> subprocess.CompletedProcess[str]:
    words = arguments(path, *([space] if space else []), *more)
    return run_forked(words, cwd=path.parent, env=environment(path.parent))


def started(path: Path, *more: str) -> ForkedPython:
    return piped(arguments(path, "lr=1e-4..3e-1", *more), cwd=path.parent, env=environment(path.parent))


def found(study: Path) -> list[Any]:
    """What a study found, without times."""
    events = list(read_events(study / "study.jsonl"))
    rungs = [[one["to"], one["trials"], one["scores"], one["failed"]] for one in events if one["kind"] == "rung"]
    return [rungs, *(sorted(one["scores"]) for one in events if one["kind"] == "finals")]


def left_behind(folder: Path) -> list[str]:
    ends_s = time.monotonic() + 20
    while (some := at_work(folder)) and time.monotonic() < ends_s:
        time.sleep(0.1)
    return some


def at_work(folder: Path) -> list[str]:
    """Commands of that folder, and what they started: they stay where they were begun."""
    some = []
    for one in psutil.process_iter():
        try:
            if one.cwd() == str(folder) and one.status() != psutil.STATUS_ZOMBIE:
                some.append(" ".join(one.cmdline()))
        except psutil.Error:
            continue
    return some


def the_study(path: Path) -> Path:
    (study,) = (path.parent / "runs").glob("*-tuned-*")
    return study


def lines_of(path: Path) -> int:
    return sum(len(log.read_bytes().splitlines()) for log in (path.parent / "runs").glob("*/study.jsonl"))


def test_a_study_by_command(recipe: Path) -> None:
    ended = tuned(recipe, "--trials", "4", "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert "Traceback" not in ended.stderr and "trials to step" in ended.stderr
    study = the_study(recipe)
    assert told["result"]["winner"]["point"] and (study / "result.json").exists()
    best = yaml.safe_load((study / "best.yaml").read_text())
    assert f"{best['lr']}" in " ".join(told["result"]["winner"]["overrides"]) or not told["result"]["winner"]["overrides"]
    assert not left_behind(recipe.parent)
    shown = run_forked(
        ["-m", "flatout", "tune", str(recipe), "lr=1e-4..3e-1", "--runs", str(study.parent), "--trials", "6", "--quiet"],
        cwd=recipe.parent,
        env=environment(recipe.parent),
    )
    assert shown.returncode == 0 and study.name in shown.stdout and "going on" in shown.stderr


@pytest.mark.parametrize(
    ("space", "more", "code", "words"),
    [
        ("lr=", [], 2, "lr"),
        ("lr=1e-1..1e-3", [], 2, "reversed"),
        ("lr=1e-3..1e-3", [], 2, "empty"),
        ("lr=one|two", [], 2, "lr"),
        ("batch=1.5|2.5", [], 2, "batch"),
        ("model.hiden=8|16", [], 2, "hiden"),
        ("speed=1..2", [], 2, "speed"),
        ("lr", [], 2, "key=values"),
        ("lr=1e-4..1e-1", ["--trials", "0"], 2, "trials"),
        ("lr=1e-4..1e-1", ["--trials", "many"], 2, "trials"),
        ("lr=1e-4..1e-1", ["--budget", "12 epochs"], 2, "--trials"),
        ("lr=1e-4..1e-1", ["--budget", "-1 s"], 2, "budget"),
        ("lr=1e-4..1e-1", ["--metric", "beauty"], 2, "beauty"),
        ("lr=1e-4..1e-1", ["--space", "absent.yaml"], 2, "not both"),
        ("lr=1e-4..1e-1", ["--on", "ray", "--device", "cpu"], 2, "--workers"),
        ("lr=1e-4..1e-1", ["--device", "cuda:0,cpu"], 2, "one kind of device"),
        ("", ["--space", "absent.yaml"], 2, "absent.yaml"),
    ],
)
def test_bad_input(space: str, more: list[str], code: int, words: str, recipe: Path) -> None:
    refused(tuned(recipe, *more, space=space), code, words)
    assert not (recipe.parent / "runs").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"data": {"arrays": "rows.npz"}}, "holdout"),
        ({"budget": "3 s"}, "--budget"),
        ({"data": {"arrays": "no.npz"}}, "no.npz"),
    ],
    ids=["no validation", "time", "no data"],
)
def test_recipes_that_can_not_be_tuned(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", **table())
    refused(tuned(written(tmp_path, {**RECIPE, **changed}), "--trials", "4"), 2, words)


def refused(ended: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert ended.returncode == code, ended.stderr
    assert not any(word in ended.stderr for word in ("Traceback", "UsageError", "RecipeError", "DataError"))
    assert words in ended.stderr and not ended.stdout


def test_killed_at_random_times_it_ends_the_same(recipe: Path) -> None:
    whole = tuned(recipe, "--trials", "12", "--quiet")
    assert whole.returncode == 0, whole.stderr
    study = the_study(recipe)
    expected = found(study)
    before_its_first_rung(study)
    draw, kills = random.Random(5), 0
    for _ in range(2):
        process = started(recipe, "--trials", "12", "--quiet")
        wanted = draw.randint(2, 4) + lines_of(recipe)
        while process.poll() is None and lines_of(recipe) < wanted:
            time.sleep(0.01)
        if process.poll() is None:
            kills += 1
            assert len(at_work(recipe.parent)) >= 3, "the command, the template of processes and one that trains"
        process.kill()
        process.communicate()
    assert kills and not left_behind(recipe.parent)
    ended = tuned(recipe, "--trials", "12", "--quiet")
    assert ended.returncode == 0, ended.stderr
    assert found(the_study(recipe)) == expected


def before_its_first_rung(study: Path) -> None:
    """As a kill right after the measurements leaves it: what was measured decides how wide waves are, and would differ."""
    log = study / "study.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    first = next(place for place, line in enumerate(lines) if '"kind": "rung"' in line or '"kind":"rung"' in line)
    log.write_text("".join(lines[:first]))
    for name in ("result.json", "best.yaml"):
        (study / name).unlink()
    shutil.rmtree(study / "states", ignore_errors=True)


def test_ctrl_c_reports_the_best_so_far_and_goes_on(recipe: Path) -> None:
    process = started(recipe, "--budget", "300 s")
    assert process.stderr is not None
    for line in process.stderr:
        if "to step 16" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert "recipe as it was" in out and "95% interval" in out
    assert not left_behind(recipe.parent)
    assert json.loads((the_study(recipe) / "result.json").read_text())["stopped"] == "Ctrl-C"
    process = started(recipe, "--budget", "300 s")
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if "to step" in line:
            break
    assert any("going on" in line for line in seen)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130 and not left_behind(recipe.parent)
    assert the_study(recipe)


def test_sigterm_leaves_nothing_running(recipe: Path) -> None:
    process = started(recipe, "--budget", "300 s")
    assert process.stderr is not None
    for line in process.stderr:
        if "to step" in line:
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143 and not left_behind(recipe.parent)
    assert not (the_study(recipe) / "result.json").exists()
