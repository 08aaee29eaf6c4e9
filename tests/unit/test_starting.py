"""Which run a command goes on with: locks that looking does not disturb, one start at a time, code that stays the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Command, signal_at
from known_machine import keep_ceilings

from flatout.base.errors import RunBusy, StoreError
from flatout.base.events import read_events
from flatout.store.lock import FileLock, RunLock, StartLock
from flatout.store.run_folder import create

# ---- locks ----


def test_looking_never_disturbs(tmp_path: Path) -> None:
    folder = create(tmp_path, "a", "id", "0")
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            RunLock.is_held(folder.path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):
            with folder.locked():
                assert folder.status == "running"
    finally:
        done.set()
        looking.join()
    assert folder.status == "interrupted"


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from flatout.store.lock import FileLock\n"
        "FileLock(Path(sys.argv[1])).take(); print('taken', flush=True); time.sleep(60)"
    )
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "taken\n"
        assert FileLock(path).is_held
        assert not FileLock(path).take()
        assert FileLock(path).owner().startswith(f"{other.pid} on ")
        os.kill(other.pid, signal.SIGKILL)
    assert not FileLock(path).is_held
    mine = FileLock(path)
    assert mine.take()
    mine.release(remove=True)
    assert not path.exists()


def test_a_file_system_without_locks_is_no_busy_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> bool:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("flatout.store.lock._lock", none)
    with pytest.raises(StoreError, match=r"can't be locked: Function not implemented.*--runs") as error:
        RunLock(tmp_path).take()
    assert not isinstance(error.value, RunBusy)


def test_two_starts_at_once_are_one_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with StartLock(runs, "one"):
        with (
            pytest.raises(RunBusy, match=f"process {os.getpid()} on .* is starting a run of the same recipe"),
            StartLock(runs, "one"),
        ):
            pytest.fail("two at once")
        with StartLock(runs, "other"):
            pass
    assert not runs.exists(), "nothing came of it"


def test_a_start_while_another_is_planning(desk: Path, flatout: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.runs import train as run

    planned, answers = run.checked_plan, []

    def second(*args: object, **named: object) -> object:
        monkeypatch.setattr(run, "checked_plan", planned)
        answers.append(flatout("run", "table.yaml", "budget=1 epoch"))
        answers.append(flatout("run", "table.yaml", "budget=1 epoch", "--fresh"))
        return planned(*args, **named)

    monkeypatch.setattr(run, "checked_plan", second)
    assert flatout("run", "table.yaml", "budget=1 epoch").code == 0
    assert [answer.code for answer in answers] == [1, 0]
    assert "is starting a run of the same recipe" in answers[0].err
    assert sorted(path.name for path in (desk / "runs").iterdir()) == ["table-1", "table-2"]


# ---- what differs ----

NET = """
from torch import nn
WIDTH = 8

def net():
    return nn.Sequential(nn.Linear(5, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
"""


def test_a_new_run_beside_an_unfinished_one_says_why(desk: Path, flatout: Command, during_run: Callable[..., None]) -> None:
    (desk / "own.py").write_text(NET)
    command = ("run", "table.yaml", "model=own:net", "--planning", "off")
    during_run(signal_at(2, signal.SIGTERM))
    assert flatout(*command).code == 143
    during_run(None)
    (desk / "own.py").write_text((desk / "own.py").read_text().replace("WIDTH = 8", "WIDTH = 9"))
    sys.modules.pop("own")
    answer = flatout(*command)
    words = "the unfinished run table-1 is not resumed: the code that the recipe names was changed"
    assert words in answer.err
    (event,) = [one for one in read_events(desk / "runs" / "table-2" / "events.jsonl") if one["kind"] == "not_resumed"]
    assert (event["run"], event["differs"]) == ("table-1", ["code"])
    recipe = desk / "table.yaml"
    recipe.write_text(recipe.read_text().replace("lr: 1e-2", "lr: 2e-2"))
    assert "the recipe differs in lr, and the code" in flatout(*command).err
    assert "not going on" not in flatout(*command, "budget=1 epoch").err, "another command"
    sys.modules.pop("own")


# ---- whose code it is ----

LIBRARY = (
    "import time\nSEEN = object()\nSTARTED = time.time()\n\nclass Base:\n    def made(self):\n        return SEEN, STARTED\n"
)
OWN = """
import os, time, fakelib
from settings import WIDTH, NAMES
from fakelib import Base
STARTED, MARK = time.time(), id(object())
SIZES = {"a", "b", "c", "d"}
SIZES.add("e")
DROPPED = float(os.environ.get("DROPPED", "0.1"))

class Net(Base):
    def forward(self):
        return DROPPED, WIDTH, NAMES, STARTED, MARK, SIZES, fakelib.STARTED
"""
SETTINGS = "WIDTH = 3\nNAMES = {'x', 'y', 'z'}\n"


def text_in_another_process(desk: Path, **environment: str) -> str:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; from own import Net\n"
        "from flatout.base.source import source_text; print(source_text(Net))"
    )
    folders = [str(desk / "project"), str(desk / "libs")]
    command, own = [sys.executable, "-c", program, *folders], {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=own).stdout


def test_code_has_the_same_text_in_every_process(tmp_path: Path) -> None:
    for name, content in {
        "project/own.py": OWN, "project/settings.py": SETTINGS, "libs/fakelib/__init__.py": LIBRARY,
        "libs/fakelib-1.0.dist-info/RECORD": "fakelib/__init__.py,sha256=x,10\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    first = text_in_another_process(tmp_path)
    assert first == text_in_another_process(tmp_path)
    assert "class Net(Base)" in first and "WIDTH = 3" in first and "SIZES.add('e')" in first
    assert "class Base" not in first, "an installer put it there, wherever that is"
    assert text_in_another_process(tmp_path, DROPPED="0.5") != first, "a number from the environment counts"
    (tmp_path / "project" / "settings.py").write_text(SETTINGS.replace("3", "4"))
    assert text_in_another_process(tmp_path) != first
    (tmp_path / "libs" / "fakelib-1.0.dist-info" / "RECORD").unlink()
    own = text_in_another_process(tmp_path)
    assert "class Base" in own, "nobody installed it: it is the user's own"
    assert own == text_in_another_process(tmp_path)


def test_resume_where_torch_is_found_by_pythonpath(desk: Path) -> None:
    """No virtual environment, no site-packages of the interpreter's own: as with environment modules on a cluster."""
    libraries = desk / "libraries"
    libraries.symlink_to(sysconfig.get_path("purelib"))
    (desk / "own.py").write_text(NET)
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": f"{source}:{libraries}", "FLATOUT_CACHE": str(desk / "cache")}
    environment.pop("VIRTUAL_ENV", None)
    keep_ceilings(desk / "cache")
    base = getattr(sys, "_base_executable", sys.executable)
    command = [
        base,
        "-S",
        "-m",
        "flatout",
        "run",
        "table.yaml",
        "model=own:net",
        "--planning",
        "off",
        "--set",
        "checkpoint_every=1 steps",
    ]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        while (line := first.stderr.readline()) and not line.startswith("step "):
            pass
        first.kill()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert [path.name for path in (desk / "runs").iterdir()] == ["table-1"]
    kinds = [event["kind"] for event in read_events(desk / "runs" / "table-1" / "events.jsonl")]
    assert kinds.count("resumed") == 1
