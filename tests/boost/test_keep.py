"""What was proven from outside stays as a line of the script: the same remedies, with no `flatout boost` around it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout as fo
from flatout.base.errors import UsageError
from flatout.boost import keeping
from flatout.boost.patching import Edit, difference
from flatout.boost.remedies.remedy import Offer
from flatout.boost.writing import Fails, written
from flatout.doctor.script import Script
from flatout.machine.host import affinity_cores

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Counted(Dataset):
    reads = 0

    def __len__(self):
        return 64

    def __getitem__(self, row):
        Counted.reads += 1
        return torch.full((4,), float(row)), row % 2


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Counted(), batch_size=8, shuffle=True)
    for epoch in range(4):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"{loss.item():.6f}", Counted.reads)
"""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    fo.boost.keep(**dict.fromkeys(keeping._kept, "off"))
    keeping._kept.clear()


def patch_of(
    script: Script, offers: Sequence[Offer], kept: Sequence[tuple[str, Any]], fails: Fails = lambda files: ""
) -> tuple[str, list[str]]:
    changes, notes = written(script, offers, kept, fails)
    return difference(changes), notes


def ran(folder: Path) -> tuple[str, int]:
    ended = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    loss, reads = ended.stdout.split()
    return loss, int(reads)


def test_a_script_with_the_patch_does_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    plain, reads = ran(tmp_path)
    assert reads == 256
    text, notes = patch_of(Script("train.py"), [Offer("resident_data", "cpu", "off")], [("resident_data", "cpu")])
    assert len(notes) == 1 and "flatout.boost.keep" in notes[0] and notes[0].endswith(": resident data.")
    (tmp_path / "changes.patch").write_text(text)
    subprocess.run(["git", "apply", "changes.patch"], check=True)
    assert (
        (tmp_path / "train.py")
        .read_text()
        .startswith('import flatout\n\nflatout.boost.keep(resident_data="cpu")\n\nimport torch\n')
    )
    patched, reads = ran(tmp_path)
    assert patched == plain and reads < 128


def test_a_machine_with_fewer_cores_gets_no_more_threads_than_it_has() -> None:
    before, cores = torch.get_num_threads(), affinity_cores()
    with pytest.warns(UserWarning, match=f"threads={cores + 2} .*{cores} cores"):
        fo.boost.keep(threads=cores + 2)
    assert torch.get_num_threads() == cores
    fo.boost.keep(threads="off")
    torch.set_num_threads(before)


def offers_of(script: Path) -> list[Offer]:
    fused = Edit(str(script), 20, function="SGD", arguments=(("fused", "True"),))
    precision = Edit(str(script), 20, statement='torch.set_float32_matmul_precision("high")')
    return [
        Offer("fused_optimizer", "on", "off", edits=(fused,)),
        Offer("tf32", "on", "off", edits=(precision,)),
        Offer("cuda_graphs", "on", "off"),
        Offer("no_grad_evaluation", [["train.py:3", False]], "off"),
    ]


@pytest.mark.parametrize("as_module", [False, True])
def test_plain_torch_is_written_where_it_says_all(as_module: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    script, offers = Script("train" if as_module else "train.py", as_module=as_module), offers_of(tmp_path / "train.py")
    text, notes = patch_of(script, offers, [("fused_optimizer", "on"), ("tf32", "on")])
    assert "fused=True" in text and "set_float32_matmul_precision" in text and "flatout" not in text and notes == []
    kept = [("tf32", "on"), ("fused_optimizer", "on"), ("cuda_graphs", "on"), ("no_grad_evaluation", [["train.py:3", False]])]
    text, notes = patch_of(script, offers, kept)
    assert "fused=True" in text and "set_float32_matmul_precision" not in text
    assert '+flatout.boost.keep(tf32="on", cuda_graphs="on")' in text
    assert notes[0].endswith("needs flatout: tf32, cuda graphs.") and ": no grad evaluation. " in notes[1]


def test_a_module_that_is_elsewhere_gets_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, notes = patch_of(Script("package.train", as_module=True), [Offer("threads", 2, 1)], [("threads", 2)])
    assert text == "" and ": threads. Use `flatout boost`" in notes[0]


def test_a_remedy_that_there_is_not_is_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'cuda_graphs'"):
        fo.boost.keep(cuda_graph="on")
    with pytest.raises(UsageError, match="unknown remedy 'no_grad_evaluation'"):
        fo.boost.keep(no_grad_evaluation="on")


@pytest.mark.parametrize(("name", "value"), [("threads", "many"), ("autocast", "fp16"), ("fused_optimizer", True)])
def test_a_value_that_it_can_not_have_is_told_and_nothing_changes(name: str, value: object) -> None:
    call = nn.Module.__call__
    with pytest.raises(UsageError, match=f"{name}: expected .* or 'off', got {value!r}"):
        fo.boost.keep(compile="on", **{name: value})
    assert nn.Module.__call__ is call


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_was_proven_on_a_gpu_is_left_out_where_there_is_none() -> None:
    with pytest.warns(UserWarning, match="no GPU.*: resident_data, cuda_graphs"):
        fo.boost.keep(resident_data="cuda", cuda_graphs="on", autocast="bf16")
    assert nn.Linear(4, 2)(torch.ones(1, 4)).dtype == torch.float32
    assert keeping._kept == {"autocast": "bf16"}


def test_a_later_call_adds_to_an_earlier_one_and_off_takes_back() -> None:
    seen: list[torch.dtype] = []

    class Seeing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = super().forward(x)
            seen.append(result.dtype)
            return result

    model, dropout = Seeing(4, 2), nn.functional.dropout
    fo.boost.keep(autocast="bf16")
    fo.boost.keep(autocast="bf16")
    fo.boost.keep(quick_dropout="on")
    model(torch.ones(1, 4))
    assert nn.functional.dropout is not dropout
    fo.boost.keep(autocast="off")
    model(torch.ones(1, 4))
    assert seen == [torch.bfloat16, torch.float32] and nn.functional.dropout is not dropout
    fo.boost.keep(quick_dropout="off")
    assert nn.functional.dropout is dropout


WITH_WORKERS = """\
import multiprocessing
import sys

import flatout

flatout.boost.keep(threads=2, quick_dropout="on")

import torch
from torch.utils.data import DataLoader


class Told:
    def __len__(self):
        return 2

    def __getitem__(self, row):
        return torch.get_num_threads(), torch.nn.functional.dropout.__module__


if __name__ == "__main__":
    loader = DataLoader(Told(), batch_size=None, num_workers=1, multiprocessing_context=sys.argv[1])
    print([torch.get_num_threads(), torch.nn.functional.dropout.__module__], *loader)
"""


@pytest.mark.parametrize("start", ["spawn", "forkserver", "fork"])
def test_a_worker_is_left_as_it_is(start: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITH_WORKERS)
    ended = subprocess.run(
        [sys.executable, "train.py", start], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    own, *workers = re.findall(r"[\[(](\d), '(.*?)'", ended.stdout)
    assert own == ("2", "flatout.boost.remedies.quick_dropout")
    dropout = "flatout.boost.remedies.quick_dropout" if start == "fork" else "torch.nn.functional"
    assert workers == [("1", dropout)] * 2


def test_where_the_line_has_no_place_what_plain_torch_can_say_is_in_the_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text('"""What it does."""; import torch\nprecision = 1\n')
    edit = Edit("train.py", 2, statement='torch.set_float32_matmul_precision("high")')
    offers = [Offer("tf32", "on", "off", edits=(edit,)), Offer("cuda_graphs", "on", "off")]
    text, notes = patch_of(Script("train.py"), offers, [("tf32", "on"), ("cuda_graphs", "on")])
    assert "set_float32_matmul_precision" in text and "flatout" not in text
    assert len(notes) == 1 and ": cuda graphs. Use `flatout boost`" in notes[0]


def test_a_patch_that_fails_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    offers, kept = offers_of(tmp_path / "train.py"), [("fused_optimizer", "on"), ("tf32", "on")]
    seen: list[str] = []

    def fails(files: Sequence[tuple[str, str]]) -> str:
        seen.append(files[0][1])
        return "" if "flatout.boost.keep" in files[0][1] else "NameError: name 'model' is not defined"

    text, notes = patch_of(Script("train.py"), offers, kept, fails)
    assert len(seen) == 2 and '+flatout.boost.keep(fused_optimizer="on", tf32="on")' in text
    assert "NameError" in notes[0] and "needs flatout" in notes[1]
    text, notes = patch_of(Script("train.py"), offers, kept, lambda files: "it crashed")
    assert text == "" and len(notes) == 1 and notes[0].startswith("No patch: ") and "it crashed" in notes[0]
