"""What was proven from outside stays as a line of the script: the same remedies, with no `flatout boost` around it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import flatout as fo
from flatout.base.errors import UsageError
from flatout.boost import keeping
from flatout.boost.boosting import written
from flatout.boost.patching import Edit
from flatout.boost.remedies.remedy import Offer
from flatout.doctor.script import Script

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
    if keeping._installed is not None:
        keeping._installed.patches.restore()
        keeping._installed = None


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
    text, notes = written(Script("train.py"), [Offer("resident_data", "cpu", "off")], [("resident_data", "cpu")])
    assert notes == ["In the patch as one line, which needs flatout: resident data."]
    (tmp_path / "changes.patch").write_text(text)
    subprocess.run(["git", "apply", "changes.patch"], check=True)
    assert (
        (tmp_path / "train.py")
        .read_text()
        .startswith('import flatout\n\nflatout.boost.keep(resident_data="cpu")\n\nimport torch\n')
    )
    patched, reads = ran(tmp_path)
    assert patched == plain and reads < 128


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
    text, notes = written(script, offers, [("fused_optimizer", "on"), ("tf32", "on")])
    assert "fused=True" in text and "set_float32_matmul_precision" in text and "flatout" not in text and notes == []
    kept = [("tf32", "on"), ("fused_optimizer", "on"), ("cuda_graphs", "on"), ("no_grad_evaluation", [["train.py:3", False]])]
    text, notes = written(script, offers, kept)
    assert "fused=True" in text and "set_float32_matmul_precision" not in text
    assert '+flatout.boost.keep(tf32="on", cuda_graphs="on")' in text
    assert notes[0].endswith("needs flatout: tf32, cuda graphs.") and "no grad evaluation; `flatout boost`" in notes[1]


def test_a_module_that_is_elsewhere_gets_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, notes = written(Script("package.train", as_module=True), [Offer("threads", 2, 1)], [("threads", 2)])
    assert text == "" and "threads; `flatout boost` puts it in" in notes[0]


def test_a_remedy_that_there_is_not_is_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'cuda_graphs'"):
        fo.boost.keep(cuda_graph="on")
    with pytest.raises(UsageError, match="no remedy 'no_grad_evaluation'"):
        fo.boost.keep(no_grad_evaluation="on")


def test_a_value_that_it_can_not_have_is_told_and_nothing_stays() -> None:
    call = nn.Module.__call__
    with pytest.raises(UsageError, match="the remedy threads can't be 'many'"):
        fo.boost.keep(autocast="bf16", threads="many")
    assert nn.Module.__call__ is call


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_was_proven_on_a_gpu_is_left_out_where_there_is_none() -> None:
    with pytest.warns(UserWarning, match="torch sees none here: resident_data, cuda_graphs left out"):
        fo.boost.keep(resident_data="cuda", cuda_graphs="on", autocast="bf16")
    assert nn.Linear(4, 2)(torch.ones(1, 4)).dtype == torch.float32


def test_the_second_call_takes_the_place_of_the_first() -> None:
    seen: list[torch.dtype] = []

    class Seeing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = super().forward(x)
            seen.append(result.dtype)
            return result

    model = Seeing(4, 2)
    for remedies in ({"autocast": "bf16"}, {"autocast": "bf16"}, {}):
        fo.boost.keep(**remedies)
        model(torch.ones(1, 4))
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32]
