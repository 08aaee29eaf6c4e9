"""Processes that are forked off: they pause and go on, and none is left behind, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ASKER = """\
import os, sys, time
from pathlib import Path
from flatout.base.fork_server import PAUSED
from flatout.boost.forks import Forks, pause


def do(what, question):
    if what == "exit":
        return 7
    worker = os.fork()
    for turn in range(3 if what == "turns" else 10**9):
        if not worker:
            time.sleep(0.01)
            continue
        print(turn, flush=True)
        pause()
    if worker:
        os.kill(worker, 9)
    return 0


with Forks(do) as forks:
    words = Path("words.txt")
    assert forks.run("exit", Path("q"), words, 30) == 7
    pid, codes = forks.start("turns", Path("q"), words), []
    while (code := forks.wait(pid, 30)) == PAUSED:
        codes.append(words.read_text().split()[-1])
        forks.go_on(pid)
    assert (codes, code) == (["0", "1", "2"], 0), (codes, code)
    pid = forks.start("forever", Path("q"), words)
    assert forks.wait(pid, 30) == PAUSED
    print(os.getpid(), pid, flush=True)
    if sys.argv[1] == "stay":
        time.sleep(600)
"""


INTERRUPTED = """\
import signal, time
from pathlib import Path
from flatout.boost.forks import Forks


def interrupt(*_):
    raise KeyboardInterrupt


with Forks(lambda what, question: 7 if what == "exit" else time.sleep(600)) as forks:
    words = Path("words.txt")
    pid, other = (forks.start("sleep", Path("q"), words) for _ in range(2))
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        forks.wait(pid, 30)
    except KeyboardInterrupt:
        forks.end(other)
        forks.end(pid)
    print(forks.run("exit", Path("q"), words, 30))
"""


def test_what_was_waited_for_when_ctrl_c_came_can_be_ended(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "7\n", "")


def asker(folder: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ASKER, what], cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_until_gone(session: int) -> None:
    """All that is left of the process and of what it started."""
    until = time.monotonic() + 30
    while left := [one.pid for one in psutil.process_iter() if _session(one.pid) == session and one.status() != "zombie"]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def test_processes_pause_and_go_on_and_end_with_the_asker(tmp_path: Path) -> None:
    with asker(tmp_path, "end") as process:
        assert process.stdout is not None
        _, paused = map(int, process.stdout.readline().split())
        assert process.wait(30) == 0
    wait_until_gone(paused)


def test_what_is_paused_ends_when_the_asker_is_killed(tmp_path: Path) -> None:
    with asker(tmp_path, "stay") as process:
        assert process.stdout is not None
        _, paused = map(int, process.stdout.readline().split())
        assert _session(paused) == paused
        process.send_signal(signal.SIGKILL)
    wait_until_gone(paused)
