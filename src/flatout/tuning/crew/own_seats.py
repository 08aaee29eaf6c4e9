"""The devices of this machine, and how a process is started for each that trains trials there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flatout.base.answering_child import AnsweringChild, Start, by_command
from flatout.base.errors import UsageError
from flatout.machine.device import all_devices, pick_device
from flatout.machine.host import usable_cores
from flatout.machine.threads import fixed_from_outside
from flatout.recipe.load import with_overrides
from flatout.recipe.schema import Recipe
from flatout.tuning.crew.seats import CrewSeat, Here
from flatout.tuning.crew.template import TrialTemplate
from flatout.tuning.crew.worker import TrialWorker
from flatout.world.joining import ProcessPlace

_START_S = 120.0  # for a process to import torch and read the data


def on_devices(recipe: Recipe, asked: str | None) -> tuple[Recipe, list[str]]:
    """The recipe as it is trained on these devices, and their names. None: those that the recipe allows."""
    written = str(recipe.pins.get("device", "auto"))
    if asked is None:
        return recipe, list(all_devices(written))
    names = all_devices(asked)
    kinds = sorted({name.partition(":")[0] for name in names})
    if len(kinds) > 1:
        raise UsageError(f"--device names {' and '.join(kinds)}: a study trains its trials on one kind of device")
    for name in names:
        pick_device(name)
    if written.partition(":")[0] == kinds[0] or (asked == "auto" == written):
        return recipe, list(names)
    return with_overrides(recipe, [f"settings.device={kinds[0]}"]), list(names)


def own_seats(
    recipe: Recipe,
    cache: Path | None,
    devices: Sequence[str],
    place: ProcessPlace | None,
    template: TrialTemplate | None = None,
) -> list[CrewSeat]:
    """`place`: of this process among those of a launcher; several on one machine have a device each. A recipe that exists only
    in Python is trained in this process, on one device. `template`: forks the processes, where the system can."""
    if recipe.source is None:
        if place is not None:
            raise UsageError("with several processes tune reads the recipe in each of them: write it to a .yaml or .py file")
        return [CrewSeat(devices[0], lambda: Here(TrialWorker(recipe, cache)))]
    sharing = 1 if place is None else place.local_size
    names = list(devices) if place is None or sharing == 1 else [devices[place.local_rank % len(devices)]]
    side_by_side = len(names) * sharing
    threads = 0 if side_by_side == 1 or fixed_from_outside() else max(1, usable_cores() // side_by_side)
    forks = template.forks if template is not None and template.is_possible() else interpreters
    return [CrewSeat(name, partial(started, told(recipe, cache, name, threads), forks)) for name in names]


def told(recipe: Recipe, cache: Path | None, device: str, threads: int) -> dict[str, Any]:
    """What a process has to know of the recipe, as plain data. It can be read again there."""
    assert recipe.source is not None
    overrides, pins = recipe.given
    _, _, index = device.partition(":")
    return {
        "recipe": str(recipe.source.resolve()), "overrides": list(overrides), "pins": dict(pins), "path": list(sys.path),
        "cache": None if cache is None else str(cache), "threads": threads, "index": int(index) if index.isdigit() else None,
    }  # fmt: skip


def interpreters(given: Mapping[str, Any]) -> Start:
    return by_command([sys.executable, "-m", "flatout.cli.study_worker"], json.dumps(given))


def started(given: Mapping[str, Any], by: Callable[[Mapping[str, Any]], Start] = interpreters) -> AnsweringChild:
    """`given`: what `told` says."""
    return AnsweringChild(by(given), _START_S, "the process of these trials")
