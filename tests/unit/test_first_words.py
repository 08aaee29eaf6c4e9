"""What a newcomer types first: `flatout` alone, --help of anything, and Tab."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import Command

from flatout.cli.here import next_steps
from flatout.cli.main import app

PROGRAM = Path(sys.executable).with_name("flatout")


def every_command(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(words), group
    for name, command in getattr(group, "commands", {}).items():
        yield from every_command(command, (*words, name))


COMMANDS = dict(every_command(typer.main.get_command(app)))


def a_run(folder: Path, name: str, order: int, status: str | None) -> None:
    place = folder / "runs" / name
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps({"order": order}))
    if status is not None:
        (place / "result.json").write_text(json.dumps({"status": status}))


# ---- flatout alone ----


def test_an_empty_folder_gets_a_first_step(tmp_path: Path) -> None:
    steps = list(next_steps(tmp_path))
    assert len(steps) == 5 and steps[0] == "flatout demo" and steps[1].startswith("flatout new")


def test_data_is_followed_by_a_recipe_and_a_recipe_by_a_run(tmp_path: Path) -> None:
    (tmp_path / "sales 1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "notes.yaml").write_text("- no recipe")
    (tmp_path / "broken.yaml").write_text("data: [")
    assert next(iter(next_steps(tmp_path))) == "flatout new 'sales 1.csv'"
    (tmp_path / "mine.yaml").write_text("data: digits\nmodel: mlp\n")
    steps = list(next_steps(tmp_path))
    assert steps[:2] == ["flatout run mine.yaml --page", "flatout explain mine.yaml"] and len(steps) == 5


@pytest.mark.parametrize(
    ("status", "first"),
    [("finished", "flatout report last --evaluate"), ("diverged", "flatout report last"), (None, "flatout watch last")],
)
def test_after_a_run_it_is_looked_at(tmp_path: Path, status: str | None, first: str) -> None:
    a_run(tmp_path, "digits-9", 1, "finished")
    a_run(tmp_path, "digits-10", 2, status)
    steps = next_steps(tmp_path)
    assert next(iter(steps)) == first and "digits-10" in steps[first] and len(steps) == 5
    assert "flatout runs compare digits-9 last" in steps


def test_a_script_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nloss.backward()\n")
    assert list(next_steps(tmp_path))[:2] == ["flatout doctor train.py", "flatout boost train.py"]


def test_what_can_not_be_read_is_no_obstacle(tmp_path: Path) -> None:
    a_run(tmp_path, "torn-1", 1, "finished")
    (tmp_path / "runs" / "torn-1" / "run.json").write_bytes(b"{")
    (tmp_path / "runs" / "other").write_text("a file")
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    assert len(next_steps(tmp_path)) == 5 and len(next_steps(tmp_path / "gone")) == 5


def test_alone_it_prints_them(flatout: Command) -> None:
    answer = flatout()
    assert answer.code == 0 and answer.out.count("\n  flatout ") == 5 and "flatout --help" in answer.out and not answer.err


def test_every_step_is_a_command_that_exists(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: digits\nmodel: mlp\n")
    for status in ("finished", "failed", None):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        a_run(tmp_path, "digits-1", 1, status)
        for step in next_steps(tmp_path):
            check_exists(step)


# ---- help ----


def check_exists(shown: str) -> None:
    """The command, and its options."""
    words = shlex.split(shown)[1:]
    name = next((known for count in (3, 2) if (known := " ".join(words[:count])) in COMMANDS), words[0])
    assert name in COMMANDS, shown
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    if name not in ("doctor", "boost", "fleet node"):  # which take a script's own options
        assert {word for word in words if word.startswith("--")} <= known, shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_that_exists(name: str) -> None:
    examples = re.findall(r"^Example: (flatout .+?)(?: >.*)?$", COMMANDS[name].help or "", re.MULTILINE)
    assert examples, f"flatout {name} --help has no example"
    for example in examples:
        assert example.startswith(f"flatout {name}".rstrip()), example
        check_exists(example)


# ---- completion ----


def completed(words: list[str]) -> list[str]:
    """As bash does it."""
    script = (
        'eval "$(flatout completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_flatout_completion flatout; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-c", script, "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not PROGRAM.exists(), reason="flatout is not installed as a program")
def test_bash_completes_commands_and_options() -> None:
    assert completed(["flatout", "rep"]) == ["report"]
    assert set(completed(["flatout", "runs", "c"])) >= {"compare", "check"}
    assert "--planning" in completed(["flatout", "run", "--pl"])


@pytest.mark.skipif(not PROGRAM.exists(), reason="flatout is not installed as a program")
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_and_its_answers(shell: str, tmp_path: Path) -> None:
    made = subprocess.run([PROGRAM, "completion", shell], capture_output=True, text=True, check=True, timeout=60)
    assert "_FLATOUT_COMPLETE" in made.stdout
    if (program := shutil.which(shell)) is not None:
        script = tmp_path / "script"
        script.write_text(made.stdout)
        subprocess.run([program, "-n", script], check=True, timeout=60)
    asked = {"_FLATOUT_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "flatout rep",
             "_TYPER_COMPLETE_FISH_ACTION": "get-args"}  # fmt: skip
    answer = subprocess.run([PROGRAM], capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **asked})
    assert "report" in answer.stdout and "watch" not in answer.stdout


def test_another_shell_is_refused(flatout: Command) -> None:
    answer = flatout("completion", "bsh")
    assert answer.code == 2 and "bash, zsh, fish" in answer.err and "did you mean 'bash'" in answer.err
