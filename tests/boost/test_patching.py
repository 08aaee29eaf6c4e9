"""Remedies written into a script: the diff is what a person would have written, or there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from flatout.boost.patching import Edit, command_for, edited, patch, placed

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    model = nn.Linear(4, 2)
    loader = DataLoader(
        data,
        batch_size=8,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def added(text: str) -> list[str]:
    return [line[1:].strip() for line in text.splitlines() if line.startswith("+") and not line.startswith("+++")]


def test_arguments_are_added_to_the_call_on_the_line(script: str) -> None:
    text, left = patch([Edit(script, 12, function="AdamW", arguments=(("fused", "True"),))])
    assert added(text) == ["optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)"]
    assert left == []


def test_a_call_over_several_lines(script: str) -> None:
    text, left = patch(
        [Edit(script, 8, function="DataLoader", arguments=(("num_workers", "4"), ("persistent_workers", "True")))]
    )
    assert added(text) == ["batch_size=8, num_workers=4, persistent_workers=True,"] and left == []


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        ("", "import numpy\n"),
        ('#!/usr/bin/env python\n"""What it does."""\n\nfrom __future__ import annotations\n\n', "import numpy\n"),
        ("# a comment\n", "@print\ndef main():\n    pass\n"),
        ("import os\nimport sys\n\nos.environ['OMP_NUM_THREADS'] = '1'\n", "import torch\nimport random\n"),
        ("from os import environ\nenviron.setdefault('A', 'b')\n", "print(1)\n"),
    ],
)
def test_a_line_before_all_others_goes_after_what_has_to_be_first(head: str, rest: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(head + rest)
    text, left = patch([Edit(str(path), 0, statement="import flatout")])
    assert left == [] and added(text) == ["import flatout"]
    (tmp_path / "the.patch").write_text(text.replace(str(path).lstrip("/"), "train.py"))
    subprocess.run(["git", "apply", "the.patch"], cwd=tmp_path, check=True)
    assert path.read_text() == head + "import flatout\n" + rest


def test_two_names_of_one_file_are_one_file(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(script).parent)
    edits = [
        Edit("train.py", 12, function="AdamW", arguments=(("fused", "True"),)),
        Edit(script, 0, statement="import flatout"),
    ]
    text, left = patch(edits)
    assert left == [] and text.count("--- a/") == 1 and len(added(text)) == 2


def test_a_line_about_the_model_goes_before_the_optimizer_is_made(script: str) -> None:
    text, left = patch([Edit(script, 12, statement="{model}.compile()", model_line=14)])
    assert added(text) == ["model.compile()"] and left == []
    lines = text.splitlines()
    assert lines[lines.index("+    model.compile()") + 1].strip().startswith("optimizer =")


def test_several_at_once_leave_a_script_that_can_be_read(script: str) -> None:
    edits = [
        Edit(script, 12, function="AdamW", arguments=(("fused", "True"),)),
        Edit(script, 12, statement="{model}.to(memory_format=torch.channels_last)", model_line=14),
        Edit(script, 12, statement="{model}.compile()", model_line=14),
        Edit(script, 8, function="DataLoader", arguments=(("pin_memory", "True"),)),
    ]
    text, left = patch(edits)
    assert left == [] and len(added(text)) == 4


@pytest.mark.parametrize(
    "edit",
    [
        Edit("train.py", 12, function="SGD", arguments=(("fused", "True"),)),  # another call is there
        Edit("train.py", 12, function="AdamW", arguments=(("lr", "1"),)),  # it is given already
        Edit("train.py", 12, statement="{model}.compile()", model_line=15),  # nothing on that line is a model
        Edit("gone.py", 1, statement="import torch"),
    ],
)
def test_what_cannot_be_written_is_said(script: str, edit: Edit) -> None:
    here = Edit(**{**vars(edit), "file": str(Path(script).parent / edit.file)})
    assert patch([here]) == ("", [here])


def test_places() -> None:
    assert placed("a/train.py:41") == ("a/train.py", 41)
    assert placed("") is None


EVALUATES = """\
import torch


class Task:
    @staticmethod
    def evaluate(model, loader):
        for x in loader:
            model(x)

    def train(self, model, loader):
        for x in loader:
            model(x).backward()
"""


def test_a_function_that_evaluates_gets_a_decorator(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(EVALUATES)
    text, left = patch([Edit(str(path), 8, decorator="@torch.no_grad()", not_around=(12,))])
    assert added(text) == ["@torch.no_grad()"] and left == []
    assert "+    @torch.no_grad()\n     @staticmethod\n" in text
    _, left = patch([Edit(str(path), 8, decorator="@torch.no_grad()", not_around=(7,))])
    assert len(left) == 1  # it trains in there, too


def test_a_function_that_leads_to_the_training_is_not_decorated(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(EVALUATES + "\n\ndef main():\n    Task().train(model, loader)\n    for x in held_out:\n        model(x)\n")
    _, left = patch([Edit(str(path), 18, decorator="@torch.no_grad()", not_around=(12,))])
    assert len(left) == 1


@pytest.mark.parametrize(
    "before",
    [
        "import torch\r\n\r\noptimizer = torch.optim.AdamW([], lr=1e-3)\r\n",
        "import torch\n\x0c\noptimizer = torch.optim.AdamW([], lr=1e-3)\n",
        "import torch\n\noptimizer = torch.optim.AdamW([], lr=1e-3)",
        'import torch\n\nname, optimizer = "größer", torch.optim.AdamW([], lr=1e-3)\n',
    ],
    ids=["CRLF", "form feed", "no newline", "umlauts"],
)
def test_git_applies_it_whatever_the_file_is_made_of(before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(before, newline="")
    edits = [Edit(str(path), 3, function="AdamW", arguments=(("fused", "True"),)), Edit(str(path), 0, statement="import os")]
    text, left = patch(edits)
    (tmp_path / "the.patch").write_text(text, newline="")
    subprocess.run(["git", "apply", "the.patch"], check=True)
    end = "\r\n" if "\r" in before else "\n"
    assert left == [] and path.read_bytes().decode() == f"import os{end}" + before.replace("lr=1e-3", "lr=1e-3, fused=True")


@pytest.mark.parametrize(
    "command", [["git", "apply", "the.patch"], ["patch", "-p1", "-i", "the.patch"]], ids=lambda one: one[0]
)
def test_a_name_may_have_spaces(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my first model.py"
    path.write_text(SCRIPT)
    (tmp_path / "the.patch").write_text(patch([Edit(str(path), 0, statement="import os")])[0])
    subprocess.run(command, check=True)
    assert path.read_text().count("import os\n") == 1


def test_a_file_is_named_as_seen_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "b")
    text, _ = patch([Edit("../a/train.py", 0, statement="import os")])
    assert f"--- a{tmp_path}/a/train.py\n" in text
    monkeypatch.chdir(tmp_path)
    text, _ = patch([Edit(str(tmp_path / "a" / "train.py"), 0, statement="import os")])
    assert "--- a/a/train.py\n" in text


def test_where_a_file_is_elsewhere_all_are_named_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project/train.py", "model.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "project")
    text, _ = patch([Edit(name, 0, statement="import os") for name in ("train.py", "../model.py")])
    (tmp_path / "the changes.patch").write_text(text)
    command = command_for(text, tmp_path / "the changes.patch")
    assert command.startswith("patch -p1 -d / <")
    subprocess.run(command, shell=True, check=True)
    assert all((tmp_path / name).read_text().count("import os\n") == 1 for name in ("project/train.py", "model.py"))


def test_a_file_that_does_not_import_torch_by_its_name_gets_no_line_that_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("from torch import optim\n\noptimizer = optim.AdamW([])\n")
    edit = Edit(str(path), 3, statement="torch.backends.cudnn.benchmark = True")
    assert patch([edit]) == ("", [edit])


ON_ONE_LINE = """\
import os; import torch
from torch import nn
data = 1; model = nn.Linear(4, 2); optimizer = torch.optim.Adam(model.parameters())
if data: other = nn.Linear(4, 2); optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for x in []:
    model(x)
    other(x)
"""


@pytest.mark.parametrize(
    ("line", "model_line", "expected"),
    [
        (3, 6, "data = 1; model = nn.Linear(4, 2); model.compile(); optimizer = torch.optim.Adam(model.parameters())"),
        (4, 7, "if data: other = nn.Linear(4, 2); other.compile(); optimizer = torch.optim.SGD(other.parameters(), lr=0.1)"),
        (4, 6, "if data: model.compile(); other = nn.Linear(4, 2); optimizer = torch.optim.SGD(other.parameters(), lr=0.1)"),
    ],
)
def test_several_statements_on_a_line(line: int, model_line: int, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(ON_ONE_LINE)
    text, left = patch([Edit(str(path), line, statement="{model}.compile()", model_line=model_line)])
    assert added(text) == [expected] and left == []


def test_a_line_before_all_others_goes_above_imports_that_share_one(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(ON_ONE_LINE)
    changes, left = edited([Edit(str(path), 0, statement="import flatout")])
    assert left == [] and changes[path.resolve()][1] == "import flatout\n" + ON_ONE_LINE
