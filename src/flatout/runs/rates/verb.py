"""`find_lr`: a learning rate for a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.machine.device import pick_device
from flatout.recipe.build import build_job, check_job
from flatout.recipe.load import recipe_given
from flatout.recipe.outputs import why_outputs_are_doubtful
from flatout.runs.rates.auto import rate_for
from flatout.runs.rates.found import FoundRate
from flatout.runs.rates.search import LIMIT
from flatout.runs.trained import CACHE


def find_lr(
    recipe: Any, *, limit: str = LIMIT, cache: Path | str | None = CACHE, say: Callable[[str], None] = lambda line: None
) -> FoundRate:
    """A learning rate for a recipe, or a recipe file: `.lr`, the range that is as good, the reason and the curve.

    Trains copies of the model for a short time; nothing is stored. `limit`: about how long to search, such as "2 min". The
    recipe's own `lr` is not used; with `lr: auto` a run does this by itself. `say` gets a line about how long it will take.
    """
    asked, kept = recipe_given(recipe), None if cache is None else Path(cache)
    job = build_job(asked, kept)
    device = pick_device(asked.pins.get("device", "auto"))
    check_job(job, device)
    warning = why_outputs_are_doubtful(job, device)
    return replace(rate_for(asked, job, kept, limit=limit, say=say), warning=warning)
