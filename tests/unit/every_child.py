"""Starts a tree of processes by each part of flatout that starts any, in the folder that it is given, and waits."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import process_tree
import torch

from flatout.base.child import Child
from flatout.boost.forks import Forks
from flatout.boost.running import waited_for
from flatout.cli.doctor import measured_once
from flatout.data.workers import nursery, watched
from flatout.data.workers.arena import ArenaLayout
from flatout.data.workers.parcel import Parcel
from flatout.drill import drill
from flatout.plan.trials.process import TrialProcess
from flatout.runs import layout_trials

TREE = process_tree.__file__
assert TREE is not None


def a_worker(there: str, forked: bool) -> None:
    setattr(watched, "start_worker", partial(nursery.start_worker, forked=forked))  # noqa: B010
    worker = watched.ProcessWorker(Parcel(process_tree.GrowingTask()), None, ArenaLayout({}, 0), 600.0)
    worker.start()
    threading.Thread(target=worker.call, args=(there, str), daemon=True).start()


def main(there: str) -> None:
    torch.set_num_threads(1)
    forks = Forks(lambda what, question: process_tree.grow(Path(there)))
    forks.start("grow", Path("q"), Path(there) / "words.txt")
    trial = TrialProcess([sys.executable, TREE], limit_s=600.0)
    os.environ["PROCESS_TREE"] = there
    trial.begin()
    child = Child([sys.executable, TREE, there])
    for forked in (True, False):
        a_worker(there, forked)
    threading.Thread(target=drill._finish, args=([sys.executable, TREE, there], Path(there)), daemon=True).start()
    # `python -m flatout` is the tree now
    package = Path(there) / "path" / "flatout"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(TREE, package / "__main__.py")
    os.environ |= {"PYTHONPATH": str(package.parent), "FLATOUT_CACHE": there, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    threading.Thread(target=measured_once, args=("test",), daemon=True).start()
    layout_trials._arguments = lambda *_: []
    setattr(layout_trials, "environment_beside", lambda *_: dict(os.environ))  # noqa: B010
    nothing: Any = None
    tried = (nothing, nothing, nothing, {"address": "", "port": 0}, Path(there), None, 600.0)
    threading.Thread(target=layout_trials._tried, args=tried, daemon=True).start()
    waited_for([sys.executable, TREE, there])
    del forks, trial, child


if __name__ == "__main__":
    main(sys.argv[1])
