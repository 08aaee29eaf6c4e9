"""The end of a process that has trained with others: all is said and written, and nothing is taken apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from worlds import launched

RECIPE = """
data: digits
model: {mlp: {hidden: [15, 15]}}
batch: 32
lr: 0.001
budget: 6 steps
evaluate: null
"""
# what a thread of Gloo does now and then, here for certain: the process aborts while the interpreter goes down
ABORTS = """
import ctypes, signal

libc = ctypes.CDLL(None)
signal.signal(signal.SIGABRT, signal.SIG_DFL)
ctypes.pythonapi.Py_AtExit(libc.abort)
"""


def test_a_finished_run_ends_well_though_its_interpreter_would_not(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    (tmp_path / "sitecustomize.py").write_text(ABORTS)
    aborting = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    alone = subprocess.run([sys.executable, "-c", "pass"], env={**os.environ, **aborting})
    assert alone.returncode == -signal.SIGABRT  # so it would end
    run = ["-m", "flatout", "run", str(tmp_path / "small.yaml"), "--runs", str(tmp_path / "runs"), "--planning", "off"]
    with launched(2, run, aborting) as processes:
        said = [process.communicate(timeout=120) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], said
    assert "budget spent after 6 steps" in said[0][0]


def test_threads_exit_functions_and_output_are_waited_for() -> None:
    code = """
import atexit, threading, time
from flatout.cli.leaving import leave

atexit.register(print, "at its exit")
threading.Thread(target=lambda: (time.sleep(0.3), print("in a thread"))).start()
print("at the end", end=" ")
leave(3)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "at the end in a thread\nat its exit\n", "")
