"""The process in which settings are tried: reads the recipe, builds its job, and runs trials until the pipe is closed.

python -m flatout.cli.trying READ WRITE <RECIPE.json
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import torch

from flatout.cli.places import allow_deterministic_cuda, price_per_hour
from flatout.engine.surroundings import own_random_state
from flatout.plan.trials.bench import Bench
from flatout.plan.trials.process import serve
from flatout.recipe.build import build_job
from flatout.recipe.load import read_recipe


def main(read_from: int, write_to: int) -> None:
    allow_deterministic_cuda()  # the cost of deterministic kernels is measured too
    given = json.load(sys.stdin)
    sys.path[:] = given["path"]
    torch.set_num_threads(given["threads"])
    device = torch.device(given["device"])
    with ExitStack() as until_nobody_asks:

        def make_bench() -> Bench:
            recipe = read_recipe(Path(given["recipe"]), given["overrides"], given["pins"]).priced(price_per_hour())
            until_nobody_asks.enter_context(own_random_state(recipe.seed, device))
            return Bench(build_job(recipe, None if given["cache"] is None else Path(given["cache"])), device)

        serve(make_bench, read_from, write_to)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
