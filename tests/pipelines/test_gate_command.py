"""`flatout gate`: runs and packages of one table, the exit codes, the files it writes, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import flatout as fo
from flatout.packaging import package
from flatout.packaging.export import export
from flatout.packaging.runtimes import choice as runtime_choice
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.pipelines.gate.side import GateSide

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "ci"
Command = Callable[..., tuple[int, str, str]]


def rows(count: int, seed: int) -> pd.DataFrame:
    drawn = np.random.default_rng(seed)
    x = drawn.normal(size=(count, 3)).round(3)
    label = np.where(x[:, 0] + 0.5 * x[:, 1] + drawn.normal(0, 0.4, count) > 0, "yes", "no")
    return pd.DataFrame(
        {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "place": drawn.choice(["here", "there"], count), "label": label}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages `old` and `new`, as good as each other, and `weak`, which is not."""
    where = tmp_path_factory.mktemp("gate")
    rows(3_000, 0).to_csv(where / "train.csv", index=False)
    rows(8_000, 1).to_csv(where / "test.csv", index=False)
    rows(60, 2).to_csv(where / "few.csv", index=False)
    made: dict[str, dict[str, object]] = {"old": {"seed": 0}, "new": {"seed": 1}, "weak": {"seed": 1, "lr": 1e-6}}
    for name, changed in made.items():
        data = {"table": str(where / "train.csv"), "label": "label", "holdout": 0.2}
        recipe = fo.Recipe(
            **{"data": data, "model": {"mlp": {"hidden": [8]}}, "batch": 64, "lr": 1e-2, "budget": "4 epochs", "name": name,
               "evaluate": None, "settings": {"device": "cpu"}, **changed},
        )  # fmt: skip
        run = fo.run(recipe, runs=where / "runs", cache=None, planning="off", quiet=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(package, "SIZES", (1,))  # how fast runtimes are does not matter here
            patch.setattr(runtime_choice, "RUNTIMES", (EagerRuntime, OnnxRuntime))
            export(run, where / name)
    return where


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    from flatout.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flatout", "gate", *map(str, arguments), "--slower", "any"])
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return int(str(code or 0)), printed.out, printed.err

    return run


def test_a_model_that_is_as_good_passes_with_its_slices(gate: Command) -> None:
    code, out, err = gate(
        "new", "--against", "old", "--data", "test.csv", "--margin", 2, "--slice", "place", "--markdown", "gate.md"
    )
    assert code == 0, out + err
    assert out.startswith("PASS: accuracy ") and "place=here" in out and "place=there" in out
    written = Path("gate.md").read_text()
    assert written.startswith("**PASS**") and "| accuracy |" in written and "|   place=here |" in written


def test_a_worse_model_fails(gate: Command) -> None:
    code, out, _ = gate("weak", "--against", "old", "--data", "test.csv", "--json")
    assert code == 1
    found = json.loads(out)
    assert found["verdict"] == "fail"
    (check,) = found["checks"]
    assert check["verdict"] == "fail" and check["lost"] > 5 and check["low"] > 0 and check["n"] == 8000
    assert {one["what"] for one in found["costs"]} == {"seconds of a call", "bytes"}


def test_few_rows_are_no_verdict(gate: Command) -> None:
    code, out, _ = gate("new", "--against", "old", "--data", "few.csv")
    assert code == 3 and out.startswith("NO VERDICT: accuracy: it takes about ")


def test_without_an_old_model_a_floor_decides(gate: Command) -> None:
    assert gate("new", "--data", "test.csv", "--floor", "accuracy=0.8")[0] == 0
    code, out, _ = gate("weak", "--data", "test.csv", "--floor", "accuracy=0.8")
    assert code == 1 and "at least 0.8 is asked for" in out


def test_a_model_with_itself_loses_nothing(gate: Command) -> None:
    code, out, _ = gate("old", "--against", "old", "--data", "test.csv", "--quiet")
    assert code == 0 and "loses nothing" in out


@pytest.mark.parametrize(
    "asked, code, said",
    [
        (["new", "--data", "test.csv"], 2, "--against OLD, or where there is none yet with a floor"),
        (["new", "--data", "test.csv", "--floor", "acuracy=0.9"], 2, "--floor acuracy: a classify model is judged by accuracy"),
        (["new", "--data", "test.csv", "--floor", "accuracy"], 2, "such as accuracy=0.9; got 'accuracy'"),
        (["new", "--against", "old", "--data", "test.csv", "--margin", "0"], 2, "--margin is above 0"),
        (["new", "--against", "old", "--data", "test.csv", "--look", "0"], 2, "--look counts from 1, got 0"),
        (["new", "--against", "old", "--data", "test.csv", "--larger", "much"], 2, "--larger is a percentage such as 25%"),
        (["new", "--against", "old", "--data", "test.csv", "--batch", "0"], 2, "--batch is a number of rows"),
        (["new", "--against", "old", "--data", "test.csv", "--slice", "plac"], 1, "no column 'plac'; did you mean 'place'?"),
        (["new", "--against", "old", "--data", "missing.csv"], 1, "missing.csv"),
        (["new", "--against", "old", "--data", "test.csv", "--markdown", "no/gate.md"], 2, "--markdown: folder not found"),
        (["new", "--against", "nothing", "--data", "test.csv"], 1, "nothing is no package"),
    ],
)
def test_bad_input(gate: Command, asked: list[str], code: int, said: str) -> None:
    found, out, err = gate(*asked)
    assert found == code and said in err and "Traceback" not in err and not out


def test_a_full_disk_is_said_after_the_verdict(gate: Command) -> None:
    code, out, err = gate("old", "--against", "old", "--data", "test.csv", "--markdown", "/dev/full")
    assert code == 1 and out.startswith("PASS") and "can't write /dev/full: No space left on device" in err


def test_models_that_answer_other_questions_are_not_compared(gate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GateSide, "objective", property(lambda side: "regress" if side.name == "old" else "classify"))
    code, _, err = gate("new", "--against", "old", "--data", "test.csv")
    assert code == 2 and "objective is classify, the old one's regress" in err


def test_a_model_that_leaves_rows_out_is_not_compared(gate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read = GateSide.read

    def some(side: GateSide, say: Callable[[str], None]) -> object:
        rows, columns = read(side, say)
        return ({name: one[5:] for name, one in rows.items()} if side.name == "old" else rows), columns

    monkeypatch.setattr(GateSide, "read", some)
    code, _, err = gate("new", "--against", "old", "--data", "test.csv")
    assert code == 1 and "reads 8,000 rows of this data and the old one 7,995" in err and "the same rows for both" in err


def test_answers_that_are_not_numbers_are_not_judged(gate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.pipelines.gate import side

    monkeypatch.setattr(side, "costs_of", lambda *given: {"wrong": np.array([0.0, np.nan])})
    code, _, err = gate("new", "--against", "old", "--data", "test.csv")
    assert code == 1 and "the answers of the new model are not finite in wrong" in err


@pytest.fixture
def job(tmp_path: Path, folder: Path) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    """Runs a script of a CI job, as its runner does, with `new` a package of this folder."""

    def run(script: str, new: str) -> subprocess.CompletedProcess[str]:
        here = tmp_path / "job"
        here.mkdir()
        (here / "new").symlink_to(folder / new)
        (here / "production").symlink_to(folder / "old")
        (here / "test.csv").symlink_to(folder / ("few.csv" if new == "new" else "test.csv"))
        paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        given = {**os.environ, "PATH": paths, "GITHUB_STEP_SUMMARY": str(here / "summary.md")}
        return subprocess.run(["bash", "-e", "-c", script], cwd=here, env=given, capture_output=True, text=True, timeout=300)

    return run


@pytest.mark.parametrize("new, code", [("old", 0), ("new", 0), ("weak", 1)])  # of few rows there is no verdict on the new one
def test_the_github_job(job: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, new: str, code: int) -> None:
    steps = yaml.safe_load((EXAMPLES / "github-gate.yml").read_text())["jobs"]["gate"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == "gate"]
    done = job(script, new)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("::warning::no verdict" in done.stdout) == (new == "new")
    verdict = {"old": "PASS", "new": "NO VERDICT", "weak": "FAIL"}[new]
    assert (tmp_path / "job" / "summary.md").read_text().startswith(f"**{verdict}**")


def test_the_gitlab_job(job: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    written = yaml.safe_load((EXAMPLES / "gitlab-gate.yml").read_text())["gate"]
    done = job("\n".join(written["script"]), "new")
    assert done.returncode == written["allow_failure"]["exit_codes"] == 3, done.stderr
    assert all((tmp_path / "job" / name).exists() for name in written["artifacts"]["paths"])
