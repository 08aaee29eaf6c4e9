"""Each process of a world asks which of some layouts is the fastest, and tells what it was told."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from flatout.plan.layouts.fitting import LayoutChoice
from flatout.recipe.build import build_job
from flatout.recipe.load import read_recipe
from flatout.runs.layout_trials import fastest
from flatout.world.joining import join


def main() -> int:
    path, runs, meshes = (json.loads(given) for given in sys.argv[1:])
    cache = Path(os.environ["PROBED"])
    recipe = read_recipe(Path(path), ["batch=24"], {"device": "cpu"})
    world = join(torch.device("cpu"))
    try:
        options = [LayoutChoice(mesh, "estimated", step_s=60.0) for mesh in meshes]
        found = fastest(world, recipe, build_job(recipe, cache), options, runs=Path(runs), cache=cache, limit_s=300.0)
        print(json.dumps([found.mesh, found.source, found.why]))
    finally:
        world.close()
    return 0


sys.exit(main())
