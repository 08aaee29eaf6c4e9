"""How several processes share a run: they check that they agree, choose a mesh and plan for it.

Each process gets the parts of the plan that fit its device; settings that several processes can't use are switched off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from flatout import __version__
from flatout.base.errors import UsageError
from flatout.base.source import lasting_text
from flatout.engine.job import Job
from flatout.engine.parallel.mesh import parse_mesh
from flatout.engine.settings import value_of
from flatout.machine.device import device_name, pick_device
from flatout.machine.facts import read_facts
from flatout.measure.receipt import Receipt
from flatout.plan.knobs.all import conflicts, off_when_shared, rules_of
from flatout.plan.layouts.fitting import LayoutChoice, surely_fits
from flatout.plan.make import ceilings_of, plan_of_share
from flatout.plan.plan import Plan
from flatout.recipe.build import Identity, code_of
from flatout.recipe.schema import Recipe
from flatout.world.agreement import by_first, check_same
from flatout.world.links import measure_links
from flatout.world.world import World

_SHARED_CORES = "each process has its share of the cores"


def check_all_agree(world: World, recipe: Recipe, job: Job, own: Identity) -> None:
    """All processes have the same versions, recipe, data and code."""
    code = code_of(recipe, job)
    mine = {
        "flatout": __version__,
        "torch": str(torch.__version__),
        "recipe": json.dumps(recipe.written(), indent=1, sort_keys=True, default=lasting_text),
        "data": job.data.fingerprint(),
        "code": hashlib.sha256(f"{own.whole} {code}".encode()).hexdigest(),
    }
    check_same(world, mine, lambda: code)


def choose_layout(
    world: World,
    recipe: Recipe,
    job: Job,
    cache: Path | None,
    begun: str = "",
    try_out: Callable[[Sequence[LayoutChoice]], LayoutChoice] = lambda options: options[0],
) -> LayoutChoice:
    """A copy of the model per process if memory allows, else the fastest mesh in trials of those that should fit.

    `begun`: the mesh of the run that is resumed; the same number of processes keeps it.
    """
    if asked := recipe.pins.get("mesh", ""):
        return LayoutChoice(asked, "pinned by you", "pinned")
    if begun and _fits(begun, world.size):
        return LayoutChoice(begun, "as in the run that is resumed")
    if job.exchange is not None:
        return LayoutChoice(f"data={world.size}", "with exchange every process has all weights")
    if job.frozen.until:
        return LayoutChoice(f"data={world.size}", "with unfreeze every process has all weights")
    planned = str(pick_device(recipe.pins.get("device", "auto")))
    device = torch.device(_device_of(world, planned))
    memory_bytes = min(world.gather(_memory_bytes(device, world)))
    if (sure := surely_fits(job, world.size, memory_bytes)) is not None:
        return sure
    links = measure_links(world, device)
    compute_bytes, product = (4, "fp32") if device.type == "cpu" else (2, "bf16")

    def estimate() -> dict[str, Any]:
        from flatout.plan.layouts.here import cluster_of, suggest  # here: a pinned mesh needs no estimate

        cluster = cluster_of(device_name(device), memory_bytes, world.local_size, ceilings_of(device, cache), links, product)
        return {"found": [asdict(one) for one in suggest(job, world.size, cluster, compute_bytes=compute_bytes)]}

    return try_out([LayoutChoice(**one) for one in by_first(world, estimate)["found"]])


def _fits(mesh: str, size: int) -> bool:
    try:
        parse_mesh(mesh, size)
    except UsageError:
        return False
    return True


def _memory_bytes(device: torch.device, world: World) -> int:
    """Memory of this process's device; processes on a CPU share the memory of the host."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return read_facts().memory_usable_bytes // max(1, world.local_size)


def plan_for_all(
    world: World,
    layout: LayoutChoice,
    recipe: Recipe,
    job: Job,
    cache: Path | None,
    *,
    limit_s: float,
    say: Callable[[str], None],
) -> tuple[Plan, Receipt | None]:
    """The plan of one process's share of each batch. Settings of a split model are predicted, not tried."""
    if recipe.pins.get("graph"):
        raise UsageError(f"graph=on needs one process, there are {world.size}: --off graph")
    axes = parse_mesh(layout.mesh, world.size)
    split = [name for name, size in axes.items() if size > 1 and name != "data"]
    if split and limit_s > 0:
        say(f"the model is split by {' and '.join(split)}: settings are chosen by prediction, without trials")
    off = off_when_shared(world.size, layout.mesh)
    pins = {"threads": 0, **off, **layout.settings, **recipe.pins, "graph": False, "mesh": layout.mesh}
    shares = axes["data"] * axes["shard"]
    plan, receipt = plan_of_share(recipe, pins, job, shares, cache, limit_s=0.0 if split else limit_s, say=say)
    ours = {name: _why_off(name, world.size, layout.mesh) for name in off if name not in recipe.pins}
    ours |= {name: f"without it, {layout.mesh} should not fit" for name in layout.settings if name not in recipe.pins}
    if "threads" not in recipe.pins:
        ours["threads"] = _SHARED_CORES
    reasons = {"mesh": (layout.why, layout.source), **{name: (why, "default") for name, why in ours.items()}}
    choices = []
    for choice in plan.choices:
        why, source = reasons.get(choice.name, (choice.why, choice.source))
        choices.append(replace(choice, why=why, source=source))
    return replace(plan, choices=tuple(choices)), receipt


def adapt_plan(world: World, recipe: Recipe, layout: LayoutChoice, plan: Plan) -> tuple[Plan, dict[str, tuple[Any, str]]]:
    """The plan for this process: a resumed run keeps its plan, but it may now have other processes or another mesh.

    Also returns the settings that had to be switched off, each with its value now and the reason.
    """
    settings = replace(plan.settings, mesh=layout.mesh)
    off = {
        name: value
        for name, value in off_when_shared(world.size, layout.mesh).items()
        if value_of(settings, name) != value and (rules_of(name).one_process or name not in recipe.pins)
    }
    if world.size > 1:
        settings = replace(settings, device=_device_of(world, settings.device), **off)
        if "threads" not in recipe.pins:  # of a run that one process began
            settings = replace(settings, threads=0)
    if settings.mesh != plan.settings.mesh and (problems := conflicts(settings)):
        raise UsageError(
            f"this run was started with settings that mesh={layout.mesh} does not allow: {'; '.join(problems)}. "
            f"Resume it with its own mesh ({plan.settings.mesh or 'none'}), or start a new run with --fresh"
        )
    reasons = {name: (value, _why_off(name, world.size, layout.mesh)) for name, value in off.items()}
    return replace(plan, settings=settings), reasons


def _why_off(name: str, processes: int, mesh: str) -> str:
    if rules_of(name).one_process:
        return f"not possible with {processes} processes"
    return f"not possible with weights split as {mesh}"


def _device_of(world: World, planned: str) -> str:
    """The plan names the device of the first process; each process has its own."""
    kind = planned.partition(":")[0]
    return kind if kind == "cpu" else f"{kind}:{world.local_rank % max(1, torch.accelerator.device_count())}"
