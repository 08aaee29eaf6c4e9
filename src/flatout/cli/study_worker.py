"""The process in which a study trains its trials: reads the recipe and answers questions until the pipe is closed.

python -m flatout.cli.study_worker READ WRITE <RECIPE.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from flatout.base.answering_child import answer_questions
from flatout.cli.places import allow_deterministic_cuda
from flatout.recipe.load import read_recipe
from flatout.tuning.crew.worker import TrialWorker
from flatout.world.joining import leave_launcher


def main(read_from: int, write_to: int) -> None:
    allow_deterministic_cuda()
    leave_launcher(os.environ)  # a trial is trained by one process alone
    given = json.load(sys.stdin)
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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
