"""The process in which a study trains its trials: reads the recipe and answers questions until the pipe is closed.

python -m flatout.cli.study_worker READ WRITE <RECIPE.json
python -m flatout.cli.study_worker LINE      forks such processes, as it is asked on this socket
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flatout.base.answering_child import answer_questions
from flatout.base.fork_server import serve_forks
from flatout.base.keeper import end_with_parent
from flatout.cli.places import allow_deterministic_cuda
from flatout.recipe.load import read_recipe
from flatout.tuning.crew.worker import TrialWorker
from flatout.world.joining import leave_launcher


def main(given: Mapping[str, Any], read_from: int, write_to: int) -> None:
    allow_deterministic_cuda()
    leave_launcher(os.environ)  # a trial is trained by one process alone
    sys.path[:] = given["path"]
    if given["index"] is not None:
        torch.accelerator.set_device_index(given["index"])  # the one that `auto` and `cuda` mean from here on
    if given["threads"]:
        torch.set_num_threads(given["threads"])
    recipe = read_recipe(Path(given["recipe"]), given["overrides"], given["pins"])
    worker = TrialWorker(recipe, None if given["cache"] is None else Path(given["cache"]))
    try:
        answer_questions(worker.answer, read_from, write_to)
    finally:
        worker.close()


def be_template(line: int) -> None:
    """Has imported what trials need, computes nothing, and forks."""
    gc.collect()
    gc.freeze()  # garbage collection in a fork would write to every object, and so copy all shared pages
    serve_forks(line, forked)
    os._exit(0)


def forked(given: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """What a fork of the template does."""
    end_with_parent()
    read_from, write_to, output, errors = descriptors
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for one, place in ((nowhere, 0), (output, 1), (errors, 2)):
        os.dup2(one, place)
        os.close(one)
    main(given, read_from, write_to)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        be_template(int(sys.argv[1]))
    else:
        main(json.load(sys.stdin), int(sys.argv[1]), int(sys.argv[2]))
