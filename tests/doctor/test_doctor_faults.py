"""Scripts that crash, exit, fork, are interrupted or print where they should not: all as without the doctor, and one report."""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreters import ForkedPython
from torch import nn
from torch.utils.data import DataLoader

import flatout as fo
from flatout.cli.main import main

REPORT = "Your script trains at"
_LIMIT_S = 40
_DOCTOR = ("-m", "flatout", "doctor", "--no-probe")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# every script is one of these and what follows it
LOOP = """\
import os, sys, time
import torch
from torch import nn

model = nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps, before=lambda step: None, rows=16):
    for step in range(steps):
        before(step)
        loss = model(torch.randn(rows, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


"""


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes] | ForkedPython
    folder: Path

    def said(self, stream: str) -> str:
        return (self.folder / f"{stream}.{self.process.pid}").read_text()

    def wait_for(self, words: str) -> None:
        """Until the script has said so on stderr."""
        until = time.monotonic() + _LIMIT_S
        while words not in self.said("err"):
            assert self.process.poll() is None and time.monotonic() < until, self.said("err")
            time.sleep(0.02)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def reports(self) -> int:
        return self.out.count(REPORT) + self.err.count(REPORT)

    @property
    def found(self) -> dict[str, Any]:
        """The JSON that stdout begins with."""
        found: dict[str, Any] = json.JSONDecoder().raw_decode(self.out)[0]
        return found


def start(folder: Path, *arguments: str, before: tuple[str, ...] = _DOCTOR, stdin: str = "", forked: bool = True) -> Running:
    """`python -m flatout doctor --no-probe ARGUMENTS` in that folder; several may be started at once. `forked`: off an
    interpreter that has imported torch, for what does not ask how an interpreter starts or ends."""
    cache = folder / "cache"
    if not cache.exists():  # a link: the name of a socket may not be longer than 107 letters, and a test's folder often is
        cache.symlink_to(tempfile.mkdtemp(prefix="f"))
    own = {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6", "FLATOUT_CACHE": str(cache), "TMPDIR": str(cache.resolve())}
    given = folder / "stdin"
    given.write_text(stdin)
    names = [folder / "out.new", folder / "err.new"]
    with given.open() as source, names[0].open("w") as out, names[1].open("w") as err:
        streams: Any = {"stdin": source, "stdout": out, "stderr": err, "cwd": folder, "env": {**os.environ, **own}}
        if forked:
            process: subprocess.Popen[bytes] | ForkedPython = ForkedPython([*before, *arguments], **streams)
        else:
            process = subprocess.Popen([sys.executable, *before, *arguments], start_new_session=True, **streams)
    for name in names:
        name.rename(name.with_suffix(f".{process.pid}"))
    return Running(process, folder)


def end(running: Running) -> Ended:
    try:
        code = running.process.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(running.process.pid, signal.SIGKILL)  # and what it started
        running.process.wait()
        raise AssertionError(f"it did not end: {running.said('out')}{running.said('err')}") from None
    return Ended(code, running.said("out"), running.said("err"))


def run(folder: Path, *arguments: str, before: tuple[str, ...] = _DOCTOR, stdin: str = "", forked: bool = True) -> Ended:
    return end(start(folder, *arguments, before=before, stdin=stdin, forked=forked))


def write(folder: Path, rest: str, name: str = "train.py", loop: str = LOOP) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(loop + rest)
    return name


# errors and exits


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended, Path]:
    """One runs out of memory in its own loop, one fails inside of a module that it calls, in the middle of the window."""
    folder = tmp_path_factory.mktemp("crashed")
    loop = "def grow(step):\n    if step == 40:\n        torch.empty(2**50)\n\n\ntrain(50, grow)\n"
    inside = "train(8)\nmodel(torch.randn(16, 63))  # the wrong width\n"
    running = [start(folder, write(folder, loop, "loop.py")), start(folder, write(folder, inside, "inside.py"))]
    return end(running[0]), end(running[1]), folder


def test_a_crash_is_told_as_python_tells_it_and_the_steps_before_it_are_diagnosed(crashed: tuple[Ended, Ended, Path]) -> None:
    ended, inside, folder = crashed
    line = 1 + (folder / "loop.py").read_text().splitlines().index("train(50, grow)")
    assert ended.err.startswith(f'Traceback (most recent call last):\n  File "{folder}/loop.py", line {line}, in <module>\n')
    assert "flatout" not in ended.err
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in inside.err
    assert "only 8 steps were trained" in inside.out
    assert (ended.code, ended.reports, inside.code, inside.reports) == (1, 1, 1, 1)
    assert not list((folder / "cache").glob("flatout-doctor-*"))  # nothing is left behind


def test_memory_that_ran_out_is_explained(crashed: tuple[Ended, Ended, Path]) -> None:
    ended, inside, _ = crashed
    words = ended.err[ended.err.index("\nOut of memory: ") :]
    assert all(part in words for part in ("weights", "gradients", "optimizer state", "activations")), words
    assert "Memory" not in inside.err


def test_a_crash_inside_of_a_watched_module_shows_no_frame_of_the_doctor(crashed: tuple[Ended, Ended, Path]) -> None:
    assert "flatout" not in crashed[1].err, crashed[1].err


@pytest.fixture(scope="module")
def exited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended, Ended, Path]:
    """After two steps with a number, after eight with words, and from a hook of the optimizer with stdout taken away."""
    folder = tmp_path_factory.mktemp("exited")
    hook = """\
from itertools import count

steps = count(1)
sys.stdout = open("log.txt", "w")
optimizer.register_step_post_hook(lambda *_: sys.exit(5) if next(steps) == 20 else print("mine"))
train(50)
"""
    few = start(folder, write(folder, "train(2)\nsys.exit(7)\n", "few.py"))
    words = start(folder, write(folder, "train(8)\nsys.exit('the learning rate is missing')\n", "words.py"))
    hooked = start(folder, write(folder, hook, "hook.py"))
    return end(few), end(words), end(hooked), folder


def test_exit_codes_and_few_steps(exited: tuple[Ended, Ended, Ended, Path]) -> None:
    few, words, hooked, _ = exited
    assert (few.code, few.out) == (7, "")
    assert "few.py ended with exit code 7; 2 steps were trained, too few" in few.err
    assert (words.code, words.reports, words.err) == (1, 1, "the learning rate is missing\n")
    assert "only 8 steps were trained" in words.out
    assert (hooked.code, hooked.err) == (5, "")


def test_a_script_that_takes_stdout_for_itself_gets_its_report_all_the_same(exited: tuple[Ended, Ended, Ended, Path]) -> None:
    log = (exited[3] / "log.txt").read_text()
    assert "mine\n" in log and REPORT not in log
    assert exited[2].out.count(REPORT) == 1


def test_what_is_no_training_script(tmp_path: Path) -> None:
    write(tmp_path, "import sys\n\nprint('hello')\nsys.exit(3)\n", "hello.py", loop="")
    own = "import sys\n\nsys.excepthook = lambda *error: print('own hook:', error[1], file=sys.stderr)\nraise OSError(9)\n"
    write(tmp_path, own, "hook.py", loop="")
    hello, hook, told = map(
        end, [start(tmp_path, "hello.py", "--stop"), start(tmp_path, "hook.py"), start(tmp_path, "--json", "hello.py")]
    )
    assert (hello.code, hello.out) == (3, "hello\n")
    assert "hello.py --stop ended with exit code 3; no training step was seen" in hello.err
    assert "--stop went to the script; put options of flatout doctor before" in hello.err
    assert told.code == 3 and json.loads(told.out)["steps"] == 0 and json.loads(told.out)["findings"] == []
    assert hook.code == 1
    assert hook.err.startswith("own hook: 9\n"), hook.err  # as Python would, and no traceback besides


def test_what_cannot_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "pass\n", "learn.py", loop="")
    write(tmp_path / "package", "pass\n", loop="")
    monkeypatch.chdir(tmp_path)
    for name, words in (("train.py", ("not found: train.py", "learn.py")), ("package", ("the folder package", "-m"))):
        monkeypatch.setattr(sys, "argv", ["flatout", "doctor", "--no-probe", name])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert (ended.value.code, told.out) == (2, "")
        assert all(part in told.err for part in words), told.err


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    write(tmp_path, "import torch\nfor step in range(3)\n    pass\n", "wrong.py", loop="")
    write(tmp_path / "package", "raise ValueError('no licence')\n", "__init__.py", loop="")
    write(tmp_path / "package", "pass\n", loop="")
    running = [start(tmp_path, "wrong.py"), start(tmp_path, "-m", "package.train"), start(tmp_path, "-m", "nowhere.train")]
    wrong, package, nowhere = (end(one) for one in running)
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith(f'  File "{tmp_path}/wrong.py", line 2\n    for step in range(3)\n'), wrong.err
    assert "SyntaxError: expected ':'\n" in wrong.err and "Traceback" not in wrong.err
    assert package.code == 1
    assert "ValueError: no licence" in package.err and "src/flatout" not in package.err, package.err
    assert nowhere.code in (1, 2) and "nowhere" in nowhere.err
    assert "Traceback" not in nowhere.err, nowhere.err
    assert not list((tmp_path / "cache").glob("flatout-doctor-*"))


# as plain Python would run it

TOLD = """
'''What a script can see of how it was started.'''
import json, os, sys
from {neighbour} import VALUE


def annotated(size: int) -> str: ...


print(json.dumps({{
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path, "package": __package__, "doc": __doc__,
    "spec": __spec__ and __spec__.name, "value": VALUE, "main": vars(sys.modules["__main__"]) is globals(),
    "annotations": repr(annotated.__annotations__), "folder": os.getcwd(),
}}))
"""
ARGUMENTS = ("--epochs", "3", "--json", "--help", "-m", "--", "--stop")


@pytest.mark.parametrize("how", ["file", "link", "module"])
def test_a_script_sees_what_it_would_see_under_python(tmp_path: Path, how: str) -> None:
    write(tmp_path / "package", TOLD.format(neighbour=".neighbour" if how == "module" else "neighbour"), loop="")
    write(tmp_path / "package", "VALUE = 1\n", "neighbour.py", loop="")
    (tmp_path / "link.py").symlink_to(tmp_path / "package" / "train.py")  # its neighbours are those of the file
    named = {"file": ["package/train.py"], "link": ["link.py"], "module": ["-m", "package.train"]}[how]
    running = start(tmp_path, *named, *ARGUMENTS, forked=how != "file")  # one of them as a person would start it
    plain = run(tmp_path, *named, *ARGUMENTS, before=(), forked=False)
    ended = end(running)
    assert ended.code == plain.code == 0, ended.err + plain.err
    seen, expected = json.loads(ended.out), json.loads(plain.out)
    assert {name: value for name, value in seen.items() if value != expected[name]} == {}, expected


BUSY = """\
import atexit, signal

rate = input("rate? ")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: print(f"own handler: {number}"))
atexit.register(lambda: print("late words"))


def disturb(step):
    sum(range(50_000))  # something to find
    if step in (8, 20):
        os.kill(os.getpid(), signal.SIGINT if step == 8 else signal.SIGTERM)
        os.write(1, b"from below")


print(f"the rate is {rate}")
train(10**9, disturb)
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """A script that goes elsewhere, reads stdin, handles signals, prints, and never ends by itself."""
    folder = tmp_path_factory.mktemp("busy") / "project"
    write(folder, BUSY, loop="import os\n\nos.chdir('..')\n" + LOOP)
    return run(folder, "--json", "--stop", "--html", "page.html", "train.py", stdin="0.5\n"), folder


def test_json_of_an_endless_script(busy: tuple[Ended, Path]) -> None:
    ended, found = busy[0], busy[0].found
    assert ended.code == 0
    assert list(found) == ["steps", "step_ms", "samples_per_s", "ceiling_share", "ledger", "findings"]
    assert found["steps"] == 33 and found["ceiling_share"] is None and found["samples_per_s"] > 0
    assert all(list(row) == ["row", "ms", "share", "where"] for row in found["ledger"])
    keys = ["id", "what", "cost_ms", "share", "estimate", "about", "where", "evidence", "remedy", "predicted_gain"]
    assert found["findings"] and all(list(one) == keys for one in found["findings"])
    counts = {"wrong": 1e9, "keeps": 1.0, "changes": 0.25}
    costs = [one["cost_ms"] * counts[one["about"]] * (0.5 if one["estimate"] else 1.0) for one in found["findings"]]
    assert costs == sorted(costs, reverse=True)


def test_stdin_and_signals_are_the_scripts_own(busy: tuple[Ended, Path]) -> None:
    said = busy[0].err  # stdout is kept for the JSON
    assert f"own handler: {signal.SIGINT:d}\n" in said and f"own handler: {signal.SIGTERM:d}\n" in said
    assert "the rate is 0.5" in said and "from below" in said


def test_lines_are_told_from_where_it_was_started(busy: tuple[Ended, Path]) -> None:
    ended, folder = busy
    places = {row["where"].rpartition(":")[0] for row in (*ended.found["ledger"], *ended.found["findings"])} - {""}
    assert {(folder / place).resolve() for place in places} == {folder / "train.py"}, places


def test_the_page_is_written_where_it_was_asked_for(busy: tuple[Ended, Path]) -> None:
    assert (busy[1] / "page.html").exists()


def test_words_at_exit_do_not_spoil_the_json(busy: tuple[Ended, Path]) -> None:
    assert json.loads(busy[0].out)["steps"] == 33, busy[0].out[-200:]
    assert "late words" in busy[0].err


# processes


def test_a_process_that_the_script_forks_does_not_report(tmp_path: Path) -> None:
    script = """\
def fork(step):
    if step == 8:  # in the middle of the window
        child = os.fork()
        if not child:
            sys.exit(4)
        print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


train(40, fork)
sys.stdout.flush()
if child := os.fork():
    os.waitpid(child, 0)
print("the end of", "parent" if child else "child")
"""
    ended = run(tmp_path, write(tmp_path, script))
    assert (ended.code, ended.reports, ended.err) == (0, 1, "")
    assert "child: 4\n" in ended.out and "the end of parent\n" in ended.out and "the end of child\n" in ended.out


def test_processes_that_are_spawned(tmp_path: Path) -> None:
    pool = """\
import multiprocessing


def square(number):
    return number * number


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("squares:", pool.map(square, [2, 3]))
    import loop
    loop.train(12)
"""
    workers = """\
import torch
from torch.utils.data import DataLoader


class Rows:
    def __len__(self): return 320
    def __getitem__(self, index): return torch.full((64,), float(index))


if __name__ == "__main__":
    weights = torch.zeros(64, requires_grad=True)
    for batch in DataLoader(Rows(), batch_size=8, num_workers=1, multiprocessing_context="spawn"):
        (batch @ weights).mean().backward()
        weights.data -= 1e-6 * weights.grad
        weights.grad = None
    print("trained")
"""
    write(tmp_path, "", "loop.py")
    running = [start(tmp_path, write(tmp_path, one, f"{number}.py", loop="")) for number, one in enumerate((pool, workers))]
    for ended, words in ((end(running[0]), "squares: [4, 9]\n"), (end(running[1]), "trained\n")):
        assert (ended.code, ended.reports, ended.err) == (0, 1, "")
        assert ended.out.startswith(words)


def test_one_report_under_torchrun(tmp_path: Path) -> None:
    script = """\
import os
import torch
from torch import distributed, nn

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
os.write(1, b"rank %d\\n" % distributed.get_rank())
distributed.destroy_process_group()
"""
    ended = run(tmp_path, *_DOCTOR, "--json", write(tmp_path, script, loop=""), before=_TORCHRUN)
    assert ended.code == 0, ended.err
    assert ended.out.count('"ledger"') == 1 and "rank 0\n" in ended.err
    assert json.loads(ended.out)["steps"] == 40, ended.out[:200]  # what the other rank prints is not in between


# Ctrl-C


def test_control_c_ends_with_the_report_and_a_second_one_without(tmp_path: Path) -> None:
    long = """\
def rest(step):
    if step == 60:
        print("running", file=sys.stderr, flush=True)
    time.sleep(0.01 if step > 60 else 0)


train(10**9, rest)
"""
    slow = """\
from flatout.doctor import watching

watching.make_case = lambda *_: (print("reporting", file=sys.stderr, flush=True), time.sleep(3600))
"""
    once = start(tmp_path, write(tmp_path, long, "once.py"))
    twice = start(tmp_path, write(tmp_path, slow + long, "twice.py"), forked=False)
    for running, words in ((once, "running"), (twice, "running"), (twice, "reporting")):
        running.wait_for(words)
        running.process.send_signal(signal.SIGINT)
    ended = end(twice)  # long before its report is there
    assert (ended.code, ended.reports) == (130, 0)
    assert "Traceback" not in ended.err and "Exception ignored" not in ended.err, ended.err
    ended = end(once)
    assert (ended.code, ended.out.count(REPORT)) == (130, 1)
    assert "Traceback" not in ended.err, ended.err


# from Python


def _patched() -> list[Any]:
    owners: list[tuple[Any, str]] = [
        (nn.Module, "__call__"), (nn.Linear, "__call__"), (torch, "save"), (torch, "set_num_threads"), (builtins, "print"),
        (DataLoader, "__iter__"), (DataLoader, "__init__"), (torch.Tensor, "item"), (torch.Tensor, "to"),
        (torch.autograd, "backward"), (torch.optim.Optimizer, "__init__"),
    ]  # fmt: skip
    return [(name, getattr(owner, name), name in vars(owner)) for owner, name in owners]


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def test_a_loop_inside_of_with_is_told_and_everything_is_put_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = DataLoader([torch.randn(64) for _ in range(160)], batch_size=4)
    before = _patched()
    with fo.doctor.watch():
        _train(model, optimizer, batches)
    assert _patched() == before
    told = capsys.readouterr().out
    assert told.startswith(REPORT) and "test_doctor_faults.py:" in told
    with pytest.raises(ZeroDivisionError), fo.doctor.watch():  # in the middle of the window
        _train(model, optimizer, (next(iter(batches)) / (1 if step < 8 else 0 // 0) for step in range(9)))
    assert _patched() == before
    with fo.doctor.watch(tell=io.StringIO()) as watched:
        _train(model, optimizer, (torch.randn(4, 64) for _ in range(2)))
    assert "2 steps were trained, too few" in str(watched) and _patched() == before


def test_checkpoints_are_counted_once() -> None:
    model = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batches() -> Any:
        for step in range(40):
            if step in (6, 30):  # in the window, and after it
                torch.save(Slow(), io.BytesIO())
            yield torch.randn(4, 64)

    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            time.sleep(0.02)
            return int, ()

    with fo.doctor.watch(tell=io.StringIO()) as watched:
        _train(model, optimizer, batches())
    evidence = {one["id"]: one["evidence"] for one in watched.to_dict()["findings"]}  # type: ignore[attr-defined]
    assert evidence["slow_checkpoint"].startswith("2 checkpoints in 40 steps"), evidence


def test_loops_of_other_kinds_are_seen_too() -> None:
    x, weights = torch.randn(16, 64), torch.zeros(64, 8, requires_grad=True)
    with fo.doctor.watch(tell=io.StringIO()) as without_optimizer:
        for _ in range(45):
            (x @ weights - 1).square().mean().backward()
            assert weights.grad is not None
            weights.data -= 0.1 * weights.grad
            weights.grad = None
    optimizer = torch.optim.LBFGS([weights], lr=0.1, max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (x @ weights - 1).square().mean()
        loss.backward()
        return loss

    with fo.doctor.watch(tell=io.StringIO()) as with_closure:
        for _ in range(40):
            optimizer.step(closure)
    for watched, steps in ((without_optimizer, 45), (with_closure, 40)):
        found = watched.to_dict()
        assert found["steps"] == steps and REPORT in str(watched)
        ledger = {row["row"]: row for row in found["ledger"]}  # type: ignore[attr-defined]
        assert sum(row["ms"] for row in ledger.values()) == pytest.approx(found["step_ms"], rel=0.01)
        assert "test_doctor_faults.py:" in ledger["matmul"]["where"]


def test_steps_of_several_optimizers_are_counted_once() -> None:
    x = torch.randn(16, 64)
    one, other = nn.Linear(64, 8), nn.Linear(64, 8)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (one, other)]
    with fo.doctor.watch(tell=io.StringIO()) as in_turn:  # as a GAN
        for _ in range(40):
            for model, optimizer in zip((one, other), optimizers, strict=True):
                _train(model, optimizer, [x])
    assert in_turn.to_dict()["steps"] == 40
    with fo.doctor.watch(tell=io.StringIO()) as rarely:  # two of one for each of the other
        for step in range(80):
            _train(one, optimizers[0], [x])
            if step % 2:
                _train(other, optimizers[1], [x])
    assert 40 <= rarely.to_dict()["steps"] <= 43  # until it is clear who is the rare one
    for few in (1, 2, 5):  # steps to warm up, then another optimizer
        with fo.doctor.watch(tell=io.StringIO()) as one_by_one:
            _train(one, optimizers[0], [x] * few)
            _train(other, optimizers[1], [x] * 60)
        assert one_by_one.to_dict()["steps"] == few + 60 - 20  # which go by before the first is given up
        assert REPORT in str(one_by_one) and "rough" not in str(one_by_one)
