"""The commands as people and programs use them: what they print where, what they write, and how they end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import RECIPE, Answer, Command, contents, signal_at, table
from interpreters import run_forked
from known_machine import keep_ceilings
from rich.console import Console

import flatout as fo

ROOT = Path(__file__).parent.parent.parent


def data(answer: Answer) -> Any:
    """stdout is JSON and nothing else."""
    assert answer.code == 0, answer.err
    return json.loads(answer.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


# ---- help and usage ----


def test_kinds_of_data_load_when_they_are_used() -> None:
    """What every import of flatout pays for has none of the code of a kind that it may never see."""
    program = "import sys, flatout as fo\nfo.Recipe, fo.run, fo.data\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "flatout.runs.train" in loaded
    kinds = ("tables.scan", "tables.table", "photos.images", "photos.listing", "datasets.dataset", "serving.loader")
    assert [name for name in kinds if f"flatout.data.{name}" in loaded] == []


def test_help_does_not_wait_for_torch() -> None:
    program = (
        "import sys\nsys.argv = ['flatout', '--help']\nfrom flatout.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment).stdout
    assert said.endswith("0 False False\n")
    for command in ("demo", "run", "explain", "evaluate", "predict", "probe", "env", "drill", "runs"):
        assert f"\n  {command} " in said


def test_a_run_that_compiles_nothing_does_not_load_the_compiler(tmp_path: Path) -> None:
    """Which takes seconds. The first run traces a step, with the compiler's help; the next one finds the trace."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    np.savez(tmp_path / "train.npz", **table())
    program = (
        "import sys\nsys.argv = ['flatout', 'run', 'recipe.yaml', '--fresh', '--quiet']\nfrom flatout.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code or 0, 'torch._dynamo' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "FLATOUT_CACHE": str(tmp_path / "cache")}
    keep_ceilings(tmp_path / "cache")
    run_forked(["-c", program], env=environment, cwd=tmp_path, check=True)
    again = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    assert again.stdout.endswith("0 False\n"), again.stdout


@pytest.mark.parametrize("command", ["demo", "run", "explain", "evaluate", "predict", "probe", "env", "drill", "runs"])
def test_every_command_has_help(flatout: Command, command: str) -> None:
    answer = flatout(command, "--help")
    assert (answer.code, answer.err) == (0, "")
    assert f"Usage: flatout {command}" in answer.out


@pytest.mark.parametrize("arguments", [["nonsuch"], ["run"], ["predict", "last"], ["runs", "nonsuch"]])
def test_usage_errors_exit_2(flatout: Command, arguments: list[str]) -> None:
    answer = flatout(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert "Usage: flatout" in answer.err


def test_version(flatout: Command) -> None:
    from flatout import __version__

    assert flatout("--version").out == f"flatout {__version__}\n"


# ---- run ----


def test_run_prints_the_outcome_and_leaves_a_whole_folder(desk: Path, flatout: Command) -> None:
    answer = flatout("run", "table.yaml")
    assert answer.code == 0
    assert "table-1: budget spent after 48 steps, 768 samples" in answer.out
    assert "everything is in runs/table-1" in answer.out
    assert "run table-1: train/mlp on " in answer.err
    assert "100%  step 48" in answer.err
    assert {path.name for path in (desk / "runs" / "table-1").iterdir()} >= {
        "run.json", "recipe.json", "plan.json", "environment.json", "events.jsonl", "checkpoints", "result.json",
        "model.safetensors",
    }  # fmt: skip


def test_run_for_a_program(desk: Path, flatout: Command) -> None:
    answer = flatout("run", "table.yaml", "--json", "--quiet")
    result = data(answer)
    assert answer.err == ""
    assert result["status"] == "finished"
    assert (result["steps"], result["samples"]) == (48, 768)
    assert {"train_seconds", "samples_per_s", "metrics", "plan", "ledger"} <= result.keys()
    assert set(result["metrics"]) == {"train_loss", "loss", "accuracy"}
    assert result == json.loads((desk / "runs" / "table-1" / "result.json").read_text())


def test_overrides_and_pins(desk: Path, flatout: Command) -> None:
    arguments = ["lr=3e-4", "model.hidden=[4]", "data.holdout=0.5", "schedule=constant", "batch=1e1", "budget=2 epochs"]
    pinned = ["--set", "precision=bf16", "--set", "log_every=3", "--off", "fused_optimizer", "settings.keep_checkpoints=1"]
    result = data(flatout("run", "table.yaml", *arguments, *pinned, "--json", "--quiet"))
    recipe = json.loads((desk / "runs" / "table-1" / "recipe.json").read_text())
    assert (recipe["lr"], recipe["batch"], recipe["schedule"]) == (3e-4, 10, "constant")
    assert recipe["model"] == {"mlp": {"hidden": [4]}}
    assert recipe["data"] == {"arrays": "train.npz", "holdout": 0.5}
    assert result["samples"] == 128
    settings = result["plan"]["settings"]
    assert (settings["precision"], settings["log_every"]) == ("bf16", 3)
    assert (settings["fused_optimizer"], settings["keep_checkpoints"]) == (False, 1)
    choices = {choice["name"]: choice for choice in result["plan"]["choices"]}
    assert choices["precision"]["why"] == "pinned by you"
    assert len(list((desk / "runs" / "table-1" / "checkpoints").glob("step-*"))) <= 2  # the best, and the last one


def test_options_of_a_part_by_their_short_name(desk: Path, flatout: Command) -> None:
    assert flatout("run", "table.yaml", "optimizer.betas=[0.8, 0.9]", "schedule.warmup=0.1", "budget=1 epoch").code == 0
    recipe = json.loads((desk / "runs" / "table-1" / "recipe.json").read_text())
    assert recipe["optimizer"] == {"adamw": {"betas": [0.8, 0.9]}}
    assert recipe["schedule"] == {"cosine": {"warmup": 0.1}}


def test_a_finished_run_is_followed_by_another(desk: Path, flatout: Command) -> None:
    for number in (1, 2):
        assert f"table-{number}: budget spent" in flatout("run", "table.yaml", "budget=1 epoch").out
    assert weights(desk / "runs" / "table-1") == weights(desk / "runs" / "table-2")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_same_command_resumes(
    desk: Path, flatout: Command, during_run: Callable[..., None], number: signal.Signals, code: int
) -> None:
    during_run(signal_at(3, number))
    stopped = flatout("run", "table.yaml")
    during_run(None)
    assert (stopped.code, stopped.out) == (code, "")
    assert f"flatout: {number.name}: saved at step 18" in stopped.err
    assert "fits in the grace period" in stopped.err
    assert "same command" in stopped.err
    assert [run["status"] for run in data(flatout("runs", "--json"))["runs"]] == ["stopped"]
    assert flatout("evaluate", "last").code == 0, "a stopped run has weights"

    resumed = flatout("run", "table.yaml")
    assert resumed.code == 0
    assert "resumed at step 18 (288 samples)" in resumed.err
    assert "table-1: budget spent after 48 steps" in resumed.out
    assert flatout("run", "table.yaml", "--runs", "whole").code == 0
    assert weights(desk / "runs" / "table-1") == weights(desk / "whole" / "table-1")


def test_fresh_leaves_the_unfinished_run_alone(desk: Path, flatout: Command, during_run: Callable[..., None]) -> None:
    during_run(signal_at(2, signal.SIGTERM))
    assert flatout("run", "table.yaml").code == 143
    during_run(None)
    before = contents(desk / "runs" / "table-1")
    assert "table-2: budget spent" in flatout("run", "table.yaml", "--fresh").out
    assert contents(desk / "runs" / "table-1") == before


def test_another_recipe_or_other_data_is_another_run(desk: Path, flatout: Command, during_run: Callable[..., None]) -> None:
    during_run(signal_at(2, signal.SIGTERM))
    assert flatout("run", "table.yaml").code == 143
    during_run(None)
    assert "table-2: " in flatout("run", "table.yaml", "lr=2e-2").out
    np.savez("train.npz", **table(seed=1))
    assert "table-3: " in flatout("run", "table.yaml").out


def test_a_run_that_is_being_trained_is_refused(desk: Path, flatout: Command, during_run: Callable[..., None]) -> None:
    during_run(signal_at(2, signal.SIGTERM))
    assert flatout("run", "table.yaml").code == 143
    during_run(None)
    lock = desk / "runs" / "table-1" / "lock"
    program = (
        "import fcntl, os, sys\nfile = os.open(sys.argv[1], os.O_RDWR)\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "os.pwrite(file, b'%d\\n' % os.getpid(), 0)\nprint('locked', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        before = contents(desk / "runs")
        answer = flatout("run", "table.yaml")
        assert answer.code == 1
        assert f"runs/table-1 is being trained by process {other.pid}" in answer.err
        assert "--fresh" in answer.err
        assert contents(desk / "runs") == before
        assert data(flatout("runs", "--json"))["runs"][0]["status"] == "running"
        assert other.stdin is not None
        other.stdin.close()
    assert flatout("run", "table.yaml").code == 0, "the lock went with its process"


def test_a_killed_command_from_outside(desk: Path) -> None:
    """The one test with a process of its own that trains: SIGTERM, and its exit code as a shell sees it."""
    keep_ceilings(desk / "cache")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flatout", "run", "table.yaml", "budget=100000 epochs", "evaluate=null", "--planning=off"]
    pins = ["--set", "log_every=20", "--set", "device=cpu"]
    with subprocess.Popen([*command, *pins], stdout=-1, stderr=-1, text=True, env=environment) as process:
        assert process.stderr is not None
        assert any("step " in line for line in iter(process.stderr.readline, "")), "it never trained"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (143, "")
    assert "SIGTERM: saved at step " in err


def test_ctrl_c_before_anything_is_saved(flatout: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.runs import train as running

    def interrupted(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "build_job", interrupted)
    answer = flatout("run", "table.yaml")
    assert (answer.code, answer.out) == (130, "")
    assert "flatout: interrupted" in answer.err


def test_a_diverging_run_says_what_to_do(flatout: Command) -> None:
    answer = flatout(
        "run", "table.yaml", "lr=1e30", "optimizer={sgd: {momentum: 0.9}}", "objective=regress", "model.norm=false"
    )
    assert answer.code == 1
    assert "the loss was not finite" in answer.err
    assert "lower lr (it is 1e+30)" in answer.err
    assert data(flatout("runs", "--json"))["runs"][0]["status"] == "diverged"


# ---- explain ----


def test_explain_trains_nothing_and_writes_to_its_cache_alone(desk: Path, flatout: Command) -> None:
    before = contents(desk)
    said = data(flatout("explain", "table.yaml", "--json", "--set", "tier=pinned"))
    assert {"model", "machine", "rate", "unit", "bound", "ceiling_share", "settings", "rejected"} <= said.keys()
    assert said["unit"] == "samples"
    for setting in said["settings"]:
        assert setting.keys() == {"name", "value", "why", "source", "predicted", "measured", "step_j"}
        assert setting["source"] in ("default", "measured", "pinned", "cached")
    tier = next(setting for setting in said["settings"] if setting["name"] == "tier")
    assert (tier["value"], tier["why"], tier["source"]) == ("pinned", "pinned by you", "pinned")
    text = flatout("explain", "table.yaml").out
    assert text.startswith("Plan for train/mlp on ")
    assert text == text.rstrip() + "\n"
    assert {name: one for name, one in contents(desk).items() if not name.startswith("cache/")} == before


def test_explain_shows_the_stored_plan_of_a_run(desk: Path, flatout: Command) -> None:
    assert flatout("run", "table.yaml", "--quiet", "--set", "tier=pinned").code == 0
    shown = data(flatout("runs", "show", "last", "--json"))["plan"]
    for name in ("last", "table-1", "runs/table-1"):
        assert data(flatout("explain", name, "--json")) == shown
    Path("runs").rename("elsewhere")
    text = flatout("explain", "last", "--runs", "elsewhere").out
    assert text.startswith("Plan for train/mlp on ") and "pinned by you" in text
    assert "<title>Plan of table-1" in _page_of("table-1", flatout)


def _page_of(run: str, flatout: Command) -> str:
    assert flatout("explain", run, "--runs", "elsewhere", "--html", "plan.html").code == 0
    return Path("plan.html").read_text()


def test_explain_says_what_is_neither_a_recipe_nor_a_run(desk: Path, flatout: Command) -> None:
    answer = flatout("explain", "last")
    assert answer.code == 2 and "recipe not found: last" in answer.err and "no run in runs" in answer.err
    answer = flatout("explain", "x" * 300)
    assert answer.code == 2 and "recipe not found: xxx" in answer.err
    assert flatout("run", "table.yaml", "--quiet").code == 0
    answer = flatout("explain", "tabel-1")
    assert answer.code == 2 and "'table-1'" in answer.err
    answer = flatout("explain", "table-1", "lr=1", "--set", "tier=pinned", "--devices", "4")
    assert answer.code == 2 and "leave out lr=1, --set, --devices" in answer.err


# ---- evaluate and predict ----


def test_evaluate_says_what_the_run_said(flatout: Command) -> None:
    result = data(flatout("run", "table.yaml", "--json"))
    metrics = data(flatout("evaluate", "last", "--json"))
    assert metrics == {name: pytest.approx(result["metrics"][name]) for name in ("loss", "accuracy")}
    assert flatout("evaluate", "table-1").out.splitlines()[1].split() == ["accuracy", f"{metrics['accuracy']:.6g}"]
    assert data(flatout("evaluate", "runs/table-1", "--json", "--data", "train.npz"))["accuracy"] > 0.8


def test_labels_that_are_words_keep_their_meaning(flatout: Command) -> None:
    x, y = table()["x"], table()["y"]
    words = np.array(["no", "yes"])[y]
    np.savez("words.npz", x=x, y=words)
    np.savez("yes.npz", x=x[y == 1], y=words[y == 1])
    assert flatout("run", "table.yaml", "data.arrays=words.npz", "budget=40 epochs", "--quiet").code == 0
    assert data(flatout("evaluate", "last", "--data", "yes.npz", "--json"))["accuracy"] > 0.8


def test_predictions_are_right_in_every_format(desk: Path, flatout: Command) -> None:
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet
    import torch

    from flatout.runs import verbs

    assert flatout("run", "table.yaml", "--quiet").code == 0
    x = table(rows=37, seed=5)["x"]
    np.save("new.npy", x)
    with torch.no_grad():
        expected = verbs.load("last").model()(torch.from_numpy(x)).softmax(1).numpy()
    for name in ("p.parquet", "p.csv", "p.npz"):
        answer = flatout("predict", "last", "new.npy", "--out", name)
        assert answer.code == 0
        assert answer.out == f"wrote 37 rows with prediction, probability, probabilities to {name}\n"
    table_read = parquet.read_table("p.parquet")
    arrays = np.load("p.npz")
    commas = csv.read_csv("p.csv").to_pydict()
    probabilities = [
        np.array(table_read["probabilities"].to_pylist()),
        arrays["probabilities"],
        np.array([json.loads(row) for row in commas["probabilities"]]),
    ]
    labels = [table_read["prediction"].to_pylist(), arrays["prediction"].tolist(), commas["prediction"]]
    for found in probabilities:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for found in labels:
        assert found == expected.argmax(1).tolist()
    assert str(table_read.schema.field("probabilities").type) == "fixed_size_list<element: float>[2]"
    assert not list(desk.glob(".p*"))


# ---- runs ----


@pytest.fixture
def two_runs(flatout: Command) -> None:
    assert flatout("run", "table.yaml", "budget=1 epoch").code == 0
    assert flatout("run", "table.yaml", "budget=2 epochs", "lr=5e-3", "name=other").code == 0


def test_runs(two_runs: None, flatout: Command) -> None:
    listed = data(flatout("runs", "--json"))["runs"]
    assert [(run["name"], run["status"], run["steps"]) for run in listed] == [
        ("table-1", "finished", 6),
        ("other-1", "finished", 12),
    ]
    assert listed[0].keys() == {"name", "status", "created", "steps", "samples_per_s", "train_seconds", "metrics"}
    lines = flatout("runs").out.splitlines()
    assert lines[0].split()[:3] == ["run", "status", "began"]
    assert [line.split()[0] for line in lines[1:]] == ["table-1", "other-1"]


def test_no_runs_yet(flatout: Command) -> None:
    assert flatout("runs").out == "no runs in runs yet: flatout run recipe.yaml\n"
    assert data(flatout("runs", "--json")) == {"runs": []}


def test_runs_show(two_runs: None, flatout: Command) -> None:
    shown = data(flatout("runs", "show", "table-1", "--json"))
    assert (shown["name"], shown["status"], shown["recipe"]["batch"]) == ("table-1", "finished", 16)
    assert {"identity", "version", "created", "plan", "result"} <= shown.keys()
    text = flatout("runs", "show", "table-1").out
    assert text.startswith("table-1: finished: budget spent\n")
    assert "  data: {arrays: train.npz, holdout: 0.25}\n" in text
    assert "  budget: 1 epoch\n" in text
    assert "where the time went" in text


def test_runs_compare(two_runs: None, flatout: Command) -> None:
    said = data(flatout("runs", "compare", "table-1", "last", "--json"))
    assert (said["a"], said["b"]) == ("table-1", "other-1")
    assert {row["key"]: (row["a"], row["b"]) for row in said["differed"]} == {
        "lr": (0.01, 0.005), "budget": ("1 epoch", "2 epochs"), "name": (None, "other"),
    }  # fmt: skip
    outcome = {row["key"]: row for row in said["outcome"]}
    assert outcome["steps"]["ratio"] == 2.0
    text = flatout("runs", "compare", "table-1", "other-1").out
    assert text.startswith("Differences in recipe and plan\n")
    assert "Results\n" in text
    assert "Same recipe and plan" in flatout("runs", "compare", "last", "last").out


def test_runs_sorted_filtered_and_compared(two_runs: None, flatout: Command) -> None:
    said = data(flatout("runs", "--sort", "loss", "--show", "lr,batch,precision", "--json"))["runs"]
    assert {row["name"]: row["lr"] for row in said} == {"table-1": 0.01, "other-1": 0.005}
    assert said[0]["loss"] <= said[1]["loss"] and said[0]["batch"] == 16 and said[0]["plan.precision"] == "fp32"
    text = flatout("runs", "--where", "lr<=5e-3").out
    assert "other-1" in text and "table-1" not in text
    heading = flatout("runs", "--sort", "lr").out.splitlines()[0].split()
    assert heading == ["run", "status", "lr", "budget"]
    assert flatout("runs", "--sort", "nothing").code == 2
    assert data(flatout("runs", "compare", "table-1", "last", "table-1", "--json"))["c"] == "table-1"
    assert flatout("runs", "compare", "table-1").code == 2


# ---- the machine ----


def test_env(flatout: Command) -> None:
    import torch

    facts = data(flatout("env", "--json"))
    assert facts["torch"] == torch.__version__
    assert {"flatout", "python", "platform", "cuda", "gpus", "cpu", "libraries"} <= facts.keys()
    assert f"torch: {torch.__version__}" in flatout("env").out


def test_probe(desk: Path, flatout: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.machine import probe
    from flatout.machine.ceilings import Ceilings, MeasuredRate

    made_up = Ceilings("cpu", {"fp32": MeasuredRate(5e11, 4e11, 6e11, 9)}, unavailable={"launch_s": "made up"})
    monkeypatch.setattr(probe, "measure_ceilings", lambda *given, **named: made_up)
    said = data(flatout("probe", "--json", "--device", "cpu"))
    assert (said["device"], said["cached"]) == ("cpu", False)
    assert {"facts", "advice", "notes"} <= said.keys()
    assert "500 GFLOP/s" in flatout("probe", "--device", "cpu").out
    assert data(flatout("probe", "--json", "--device", "cpu"))["cached"] is True
    assert list((desk / "cache").iterdir())


# ---- recipes in Python ----

PYTHON = """\
from dataclasses import dataclass
from pathlib import Path
import flatout as fo
from torch import nn
from layers_beside import WIDTH

@dataclass
class Options:
    width: int = WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, Options().width), nn.ReLU(), nn.Linear(Options().width, 2))
    def forward(self, x):
        return self.layers(x)

def recipe():
    data = fo.data.arrays(Path(__file__).parent / "train.npz", holdout=0.25)
    return fo.Recipe(data=data, model=Net, batch=16, lr=1e-2, budget="2 epochs")
"""


@pytest.fixture
def python_recipe(desk: Path) -> Path:
    sys.modules.pop("layers_beside", None)
    (desk / "layers_beside.py").write_text("WIDTH = 8\n")
    path = desk / "own.py"
    path.write_text(PYTHON)
    return path


def test_a_recipe_in_python(
    python_recipe: Path, desk: Path, flatout: Command, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder, with overrides; afterwards the copy in the run folder is enough."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    result = data(flatout("run", str(python_recipe), "lr=2e-2", "batch=8", "--json", "--quiet"))
    assert result["steps"] == 24
    assert (elsewhere / "runs" / "own-1" / "recipe.py").read_text() == PYTHON
    python_recipe.unlink()
    assert data(flatout("evaluate", "last", "--json"))["loss"] == pytest.approx(result["metrics"]["loss"])
    assert flatout("predict", "last", str(desk / "train.npz")).code == 0


def test_an_override_of_the_model_is_remembered(python_recipe: Path, flatout: Command) -> None:
    assert flatout("run", "own.py", "model={mlp: {hidden: [3]}}", "--quiet").code == 0
    assert flatout("evaluate", "last").code == 0


def test_an_edited_class_is_another_run(python_recipe: Path, flatout: Command, during_run: Callable[..., None]) -> None:
    during_run(signal_at(1, signal.SIGTERM))
    assert flatout("run", "own.py").code == 143
    during_run(None)
    python_recipe.write_text(PYTHON.replace("nn.ReLU()", "nn.GELU()"))
    assert "own-2: " in flatout("run", "own.py").out
    python_recipe.write_text(PYTHON)
    assert "own-1: " in flatout("run", "own.py").out, "the first one is still there to resume"


# ---- what is shown while it goes ----


def test_a_terminal_gets_a_line_that_fits(flatout: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.cli import progress

    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=80))
    assert flatout("run", "table.yaml").code == 0
    assert "planning" in screen.getvalue()
    assert "step 6: loss" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K"), "the cursor is back and the line is gone"
    screen.truncate(0)
    assert flatout("run", "table.yaml", "model=nonsuch:Net").code == 2
    assert "\x1b[?25h" in screen.getvalue(), "after an error too"


def test_parts_that_do_not_fit_are_left_out() -> None:
    from flatout.runs.progress_lines import fitting

    parts = ["step 10", "loss 0.1234", "10k samples/s", "38% of ceiling"]
    assert fitting(parts) == "step 10 · loss 0.1234 · 10k samples/s · 38% of ceiling"
    assert fitting(parts, 40) == "step 10 · loss 0.1234 · 10k samples/s"
    assert fitting(parts, 3) == "step 10"


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    from flatout.cli.output import print_json

    print_json({"auc": float("nan"), "values": [1.0, float("inf")], "path": Path("a"), 3: (True, None)})
    assert json.loads(capsys.readouterr().out) == {"auc": None, "values": [1.0, None], "path": "a", "3": [True, None]}


@pytest.mark.parametrize("may_end_early, words", [(False, " · 30 s left"), (True, " · at most 30 s left")])
def test_time_left(may_end_early: bool, words: str) -> None:
    from flatout.measure.time_left import TimeLeft
    from flatout.runs.progress_lines import time_left

    left = TimeLeft()
    left({"kind": "started", "t": 0.0, "total_samples": 400, "may_end_early": may_end_early})
    assert time_left(left) == ""
    left({"kind": "step", "t": 10.0, "step": 10, "samples": 100, "done": 0.25})
    assert time_left(left) == words
    left({"kind": "step", "t": 40.0, "step": 40, "samples": 400, "done": 1.0})
    assert time_left(left) == ""


# ---- demo ----


def test_demo_shows_the_way(desk: Path, flatout: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget of two steps; that it reaches what it should is another test's matter."""
    from flatout.recipe import load as reading

    plain = reading.read_recipe
    monkeypatch.setattr(reading, "read_recipe", lambda path: plain(path, ["budget=2 steps", "model=mlp"], {"device": "cpu"}))
    answer = flatout("demo", "--runs", "tried")
    assert answer.code == 0
    for words in ("Plan for digits/mlp on ", "where the time went", "everything is in tried/digits-1", "cp "):
        assert words in answer.out
    steps = answer.out.partition("What to try next\n")[2].splitlines()
    assert steps[1].split("  ")[1] == "flatout runs compare digits-1 last --runs tried"
    assert all(step.startswith("  flatout ") for step in steps)
    assert data(flatout("demo", "--runs", "tried", "--json"))["status"] == "finished"


def test_a_stopped_run_says_how_far_it_came(desk: Path, flatout: Command, during_run: Callable[..., None]) -> None:
    during_run(signal_at(3, signal.SIGTERM))
    assert flatout("run", "table.yaml").code == 143
    (row,) = json.loads(flatout("runs", "--json").out)["runs"]
    assert row["status"] == "stopped" and row["steps"] > 0


def test_evaluate_takes_a_file_for_each_column(desk: Path, flatout: Command) -> None:
    assert flatout("run", "table.yaml").code == 0
    columns = np.load("train.npz")
    np.save("inputs.npy", columns["x"])
    np.save("labels.npy", columns["y"])
    whole = flatout("evaluate", "last", "--data", "train.npz", "--json")
    apart = flatout("evaluate", "last", "--data", "x=inputs.npy,y=labels.npy", "--json")
    assert (apart.code, apart.out) == (0, whole.out)


def test_predict_takes_arrays(desk: Path, flatout: Command) -> None:
    assert flatout("run", "table.yaml").code == 0
    x = np.load("train.npz")["x"]
    run = fo.load("last")
    assert all(len(column) == 5 for column in fo.predict(run, x[:5]).values())
    assert fo.evaluate(run, {"x": x, "y": np.load("train.npz")["y"]}) == fo.evaluate(run, "train.npz")
