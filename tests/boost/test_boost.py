"""`flatout boost` on real scripts: what is faster and proven is kept, what crashes or cheats is not, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from interpreters import run_forked

from flatout.boost.running import BoostedRun, run_to_its_end, waited_for
from flatout.boost.trial import Told

SLOW_UPDATE = """\
import os
import sys

import torch
from torch import nn



class Rows(nn.Module):  # many small tensors
    def __init__(self):
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.randn(64) / 8) for _ in range(80)])

    def forward(self, x):
        return (x @ torch.stack(list(self.rows)).T).view(-1, 2, 40).mean(2)


torch.manual_seed(0)
model = Rows()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x, y = torch.randn(2048, 64), torch.randint(0, 2, (2048,))
for step in range(int(sys.argv[1])):
    rows = torch.arange(step * 64, step * 64 + 64) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        torch.save(model.state_dict(), "last.pt")
    if step % 100 == 0:
        os.system("echo step >> log.csv")
print("trained", step + 1, type(optimizer).__name__, optimizer.defaults["fused"])
sys.exit(5)
"""


WARMS_UP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 500, 1.0))
x, y = torch.randn(256, 64), torch.randint(0, 2, (256,))
for step in range(4000):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
"""

WITHOUT_OPTIMIZER = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Drawn(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        x = torch.sin(torch.arange(16.0) * (index + sum(range(20_000)) % 2))  # takes its time
        return x, int(x.sum() > 0)


torch.manual_seed(0)
data = Drawn()
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 2))
for epoch in range(80):
    for x, y in DataLoader(data, batch_size=16):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)
"""


TWO_MODELS = """\
import torch
from torch import nn

torch.manual_seed(0)
models = [nn.Linear(256, 2000), nn.Linear(256, 2000)]
optimizer = torch.optim.Adam([weight for model in models for weight in model.parameters()])
x = torch.randn(512, 256)
for step in range(4000):
    for part in range(2):
        for model in models:
            model(x[(step + part) % 500 :][:2]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


HOLDS_A_PORT = """\
import socket

server = socket.socket()
server.bind(("127.0.0.1", PORT))
server.listen()
"""


SEVERAL_PROCESSES = """\
import time

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Rows(Dataset):
    reads = 0

    def __len__(self):
        return 256

    def __getitem__(self, at):
        Rows.reads += 1
        time.sleep(0.001)
        return torch.full((16,), float(at % 5)), at % 3


distributed.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)  # data is what is left to speed up
data = Rows()
sampler = DistributedSampler(data)
for epoch in range(15):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 8, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
world = distributed.get_world_size()
weights = model.module.weight.sum().item()
line = f"rank {distributed.get_rank()} of {world} reads {Rows.reads} weights {weights}\\n"
print(line, end="", flush=True)  # in one write: torchrun's processes print without a buffer, and share the pipe
distributed.destroy_process_group()
"""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def boosted(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    own = {"OMP_NUM_THREADS": "1", "FLATOUT_CACHE": str(folder / "cache"), **more}
    return run_forked(["-m", "flatout", "boost", "--no-probe", *arguments], cwd=folder, env={**os.environ, **own})


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("boosted")
    (folder / "train.py").write_text(SLOW_UPDATE)
    return folder, boosted(folder, "train.py", "300")


def test_the_script_runs_to_its_end_with_what_was_kept(tried: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, ended = tried
    assert ended.returncode == 5, ended.stderr  # the script's own
    assert ended.stdout == "trained 300 Adam True\n"
    assert re.search(r"flatout boost: [\d.]+x over 300 steps: .*\d [mu]?s each, ", ended.stderr)
    assert (folder / "log.csv").read_text() == "step\n" * 3  # by the last run; trials and their subprocesses wrote elsewhere
    names = ["flatout-boost", "last.pt", "log.csv", "train.py"]
    assert sorted(path.name for path in folder.iterdir() if path.name != "cache") == names


def test_the_receipt_has_both_arms_and_the_proof(tried: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = tried
    receipt = json.loads((folder / "flatout-boost" / "receipt.json").read_text())
    kept = {entry["name"]: entry for entry in receipt["entries"] if entry["verdict"] == "kept"}
    assert receipt["settings"]["fused_optimizer"] == "on" and receipt["reference_step_s"] > receipt["step_s"]
    assert kept["fused_optimizer"]["check"]["passed"] and "one step agrees" in kept["fused_optimizer"]["check"]["why"]
    assert receipt["paired"]["passed"] and receipt["paired"]["n"] >= 30
    assert "all together" in kept
    assert any(note.startswith("Protection (") for note in receipt["notes"])
    assert "fused optimizer" in (folder / "flatout-boost" / "receipt.html").read_text()


def test_the_patch_can_be_applied_and_makes_the_gain_permanent(tried: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, ran = tried
    text = (folder / "flatout-boost" / "changes.patch").read_text()
    assert "to make it permanent: git apply flatout-boost/changes.patch" in ran.stderr
    assert "+optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)" in text
    subprocess.run(["git", "apply", "--check", "flatout-boost/changes.patch"], cwd=folder, check=True)


def test_a_run_whose_losses_stop_being_numbers_is_started_again_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Long after the trials' last step, and only with what was kept."""
    late = SLOW_UPDATE.replace("    optimizer.zero_grad()\n", (
        "    if optimizer.defaults['fused'] and step > 200:\n        loss = loss * float('nan')\n    optimizer.zero_grad()\n"
    ))  # fmt: skip
    (tmp_path / "train.py").write_text(late.replace("range(80)", "range(8)").replace("2, 40", "2, 4"))
    monkeypatch.chdir(tmp_path)
    told, ran = str(tmp_path / "left.txt"), str(tmp_path / "ran.json")
    kept = BoostedRun("train.py", ("600",), False, (("fused_optimizer", "on"),), 40, 1.0, told, ran)
    with_remedies = [sys.executable, "-m", "flatout.cli.boosted_run"]
    said: list[str] = []
    code, why = run_to_its_end(with_remedies, [sys.executable, "train.py", "600"], kept, tmp_path, said.append)
    assert code == 5 and capfd.readouterr().out == "trained 600 Adam None\n"
    assert why == "its loss was not finite at steps 250 and 500" and why in said[0]


@pytest.fixture(scope="module")
def by_turns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Trials of scripts with a remedy each, held against the same scripts without it."""
    folder = tmp_path_factory.mktemp("by_hand")
    asked = {
        "without_optimizer": (WITHOUT_OPTIMIZER, "resident_data", "cpu"),
        "two_models": (TWO_MODELS, "fused_optimizer", "on"),
        "holds_a_port": (HOLDS_A_PORT.replace("PORT", str(_free_port())) + TWO_MODELS, "fused_optimizer", "on"),
        "warms_up": (WARMS_UP, "fused_optimizer", "on"),
        "ends_at_will": (TWO_MODELS.replace("4000", "50 + __import__('os').getpid() % 7"), "fused_optimizer", "on"),
    }
    for name, (text, *remedy) in asked.items():
        (folder / f"{name}.py").write_text(text)
        (folder / f"{name}.json").write_text(json.dumps(remedy))
    program = [str(Path(__file__).with_name("trials_of.py")), *asked]
    ended = run_forked(program, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert not ended.returncode, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_patched_script_is_run_before_it_is_offered(tmp_path: Path) -> None:
    optimizer = "torch.optim.AdamW(model.parameters(), lr=1e-3)"
    texts = {
        "script": WARMS_UP,
        "well": WARMS_UP.replace(optimizer, optimizer[:-1] + ", fused=True)"),
        "as_a_line": "import flatout\n\nflatout.boost.keep(fused_optimizer='on')\n" + WARMS_UP,
        "crashes": WARMS_UP.replace(
            "torch.manual_seed(0)\n", "torch.manual_seed(0)\nmodel.to(memory_format=torch.channels_last)\n"
        ),
        "learns_otherwise": WARMS_UP.replace("cross_entropy(model(x), y)", "cross_entropy(1.1 * model(x), y)"),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    program = [str(Path(__file__).with_name("patches_of.py")), *(f"{name}.py" for name in texts)]
    ended = run_forked(program, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert not ended.returncode, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["well.py"] == told["as_a_line.py"] == ""
    assert "NameError" in told["crashes.py"] and "loss" in told["learns_otherwise.py"]
    assert (tmp_path / "script.py").read_text() == WARMS_UP


@pytest.fixture(scope="module")
def by_hand(by_turns: dict[str, Any]) -> dict[str, Told]:
    return {name: Told.from_dict(found["told"]) for name, found in by_turns.items()}


def test_a_script_that_updates_its_weights_by_hand_is_proven_too(by_hand: dict[str, Told]) -> None:
    check = by_hand["without_optimizer"].check
    assert check is not None and check["passed"] and "update" in check["why"], by_hand["without_optimizer"]
    assert len(by_hand["without_optimizer"].losses) >= 30


def test_several_models_whose_gradients_add_up_are_proven(by_hand: dict[str, Told]) -> None:
    check = by_hand["two_models"].check
    assert check is not None and check["passed"], by_hand["two_models"]


def test_the_proof_names_weights_as_the_model_does(by_hand: dict[str, Told]) -> None:
    check = by_hand["warms_up"].check
    assert check is not None and re.search(r"at least [\d.]+ \((weight|bias|\d+\.(weight|bias))\)", check["why"]), check


def test_a_schedule_that_begins_with_a_rate_of_zero_is_proven_by_its_first_step_that_moves(by_hand: dict[str, Told]) -> None:
    check = by_hand["warms_up"].check
    assert check is not None and check["passed"] and "update" in check["why"], by_hand["warms_up"]


def test_two_trials_take_turns(by_hand: dict[str, Told]) -> None:
    """Each turn of one has one of the other to be held against, and data in memory is faster than what takes its time."""
    told = by_hand["without_optimizer"]
    assert len(told.steps_s) == len(told.against_s) >= 15
    assert sum(told.steps_s) < sum(told.against_s)


def test_both_make_the_same_steps_in_a_turn(by_turns: dict[str, Any]) -> None:
    """Where one is much faster, too: else what a script does now and then, at the end of a pass say, would be in either."""
    mine, beside = by_turns["without_optimizer"]["ends"]
    assert mine == beside and len(mine) >= 15


def test_where_two_of_a_script_cannot_run_at_once_they_run_one_after_the_other(by_hand: dict[str, Told]) -> None:
    told = by_hand["holds_a_port"]
    assert not told.failure and told.steps_s and not told.against_s, told
    assert told.check is not None and told.check["passed"]


def test_scripts_that_do_not_end_together_are_held_against_each_other_all_the_same(by_hand: dict[str, Told]) -> None:
    told = by_hand["ends_at_will"]
    assert not told.failure and len(told.steps_s) == len(told.against_s) > 0, told


def test_a_script_that_trains_nothing_is_run_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("import sys\nprint('hello', sys.argv[1])\nsys.exit(3)\n")
    ended = boosted(tmp_path, "hello.py", "you")
    assert ended.returncode == 3 and ended.stdout == "hello you\n"
    assert "no training was seen" in ended.stderr
    (tmp_path / "launch.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, 'hello.py', 'you'])\n")
    ended = boosted(tmp_path, "--try-only", "launch.py")
    assert ended.returncode == 1 and ended.stdout == ""
    assert re.search(r"started another Python program \(.*hello.py you\): .*`-m flatout boost`", ended.stderr)


def test_what_a_scheduler_sends_reaches_the_script(tmp_path: Path) -> None:
    told = tmp_path / "ready"
    script = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
pathlib.Path({str(told)!r}).touch()
time.sleep(60)
"""

    def send() -> None:
        while not told.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=send).start()
    assert waited_for([sys.executable, "-c", script]) == 7
    assert signal.getsignal(signal.SIGTERM) is before


def test_trials_that_are_told_to_end_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    (tmp_path / "scratch").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "flatout", "boost", "--no-probe", "slow.py"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
    ) as boost:
        assert boost.stderr is not None
        assert any("slow.py" in line for line in boost.stderr)  # the script is being observed
        (folder,) = (tmp_path / "scratch").iterdir()
        words = folder / "look.txt"
        while not words.exists() or "begun" not in words.read_text():
            time.sleep(0.05)
        boost.terminate()
        assert boost.wait(30) == 128 + signal.SIGTERM
    assert not list((tmp_path / "scratch").iterdir())


def test_json_is_for_trials_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    ended = boosted(tmp_path, "--json", "train.py")
    assert ended.returncode == 2 and "add --try-only" in ended.stderr


def test_several_processes_without_torchrun_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    ended = boosted(tmp_path, "train.py", WORLD_SIZE="2", RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1")
    assert ended.returncode == 2 and "torchrun --nproc-per-node N -m flatout boost" in ended.stderr


def test_under_torchrun_the_first_process_tries_and_all_train_with_what_it_kept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SEVERAL_PROCESSES)
    (tmp_path / "cache").mkdir()
    boost = ["-m", "flatout", "boost", "--no-probe", "--within", "20 s", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLATOUT_CACHE": str(tmp_path / "cache")}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = run_forked([*torchrun, *boost], cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("running the unmodified script twice") == 1 and "of 2 processes tries remedies" in ended.stderr
    kept = json.loads((tmp_path / "flatout-boost" / "receipt.json").read_text())["settings"]
    assert kept["resident_data"] == "cpu" and "threads" not in kept  # each process has its share of the cores
    ranks = sorted(line for line in ended.stdout.splitlines() if line.startswith("rank"))
    # each process has half of 256 samples, 15 times; they were read once, and a few again. Weights agree: it was one group
    assert [line.split()[:4] for line in ranks] == [["rank", "0", "of", "2"], ["rank", "1", "of", "2"]]
    assert all(int(line.split()[5]) < 1000 for line in ranks) and len({line.split()[7] for line in ranks}) == 1


@pytest.mark.parametrize(("option", "given"), [("--within", "soon"), ("--within", "5"), ("--lasts", "0 s")])
def test_durations_have_a_unit(tmp_path: Path, option: str, given: str) -> None:
    (tmp_path / "train.py").write_text("")
    ended = boosted(tmp_path, option, given, "train.py")
    assert ended.returncode == 2 and option in ended.stderr and repr(given) in ended.stderr
