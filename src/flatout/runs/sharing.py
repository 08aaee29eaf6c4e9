"""How the processes of a run share it: the mesh that is chosen, and what they can't have together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import UsageError
from flatout.engine.job import Job
from flatout.engine.parallel.mesh import parse_mesh
from flatout.engine.settings import value_of
from flatout.machine.device import device_name, pick_device
from flatout.machine.facts import read_facts
from flatout.plan.knobs.all import conflicts, off_when_shared, rules_of
from flatout.plan.layouts.fitting import LayoutChoice, surely_fits
from flatout.plan.make import ceilings_of
from flatout.plan.plan import Plan
from flatout.recipe.schema import Recipe
from flatout.world.agreement import by_first
from flatout.world.links import measure_links
from flatout.world.world import World


def choose_layout(
    world: World,
    recipe: Recipe,
    job: Job,
    cache: Path | None,
    begun: str = "",
    try_out: Callable[[Sequence[LayoutChoice]], LayoutChoice] = lambda options: options[0],
) -> LayoutChoice:
    """As the recipe has it; else copies, where there is memory for them, or the fastest of what should fit, tried out.

    `begun`: the mesh of a run that goes on, which as many processes keep.
    """
    asked = recipe.pins.get("mesh", "")
    if asked or world.size == 1:
        return LayoutChoice(asked, "pinned by you", "pinned")
    if begun and _fits(begun, world.size):
        return LayoutChoice(begun, "as the run was begun")
    if job.exchange is not None:
        return LayoutChoice(f"data={world.size}", "processes that train by themselves for a while have all weights")
    planned = str(pick_device(recipe.pins.get("device", "auto")))
    device = torch.device(_device_of(world, planned))
    memory_bytes = min(world.gather(_memory_bytes(device, world)))
    if (sure := surely_fits(job, world.size, memory_bytes)) is not None:
        return sure
    links = measure_links(world, device)
    compute_bytes, product = (4, "fp32") if device.type == "cpu" else (2, "bf16")

    def estimate() -> dict[str, Any]:
        from flatout.plan.layouts.here import cluster_of, suggest  # a run of one process starts sooner without it

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
    """Of a process's own device; processes on a CPU share the host's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return read_facts().memory_usable_bytes // max(1, world.local_size)


def as_shared_now(world: World, recipe: Recipe, layout: LayoutChoice, plan: Plan) -> tuple[Plan, dict[str, Any]]:
    """A run goes on as it was planned, but for how the processes share it: these may be others than those that began it. Also
    what was chosen for those and is switched off for these."""
    settings = replace(plan.settings, mesh=layout.mesh)
    off = {
        name: value
        for name, value in off_when_shared(world.size, layout.mesh).items()
        if value_of(settings, name) != value and (rules_of(name).one_process or name not in recipe.pins)
    }
    if world.size > 1:
        settings = replace(settings, device=_device_of(world, settings.device), **off)
    if settings.mesh != plan.settings.mesh and (problems := conflicts(settings)):
        raise UsageError(
            f"this run was begun with settings that mesh={layout.mesh} can't have: {'; '.join(problems)}. "
            f"Go on with the mesh that it had ({plan.settings.mesh or 'none'}), or start anew with --fresh"
        )
    return replace(plan, settings=settings), off


def why_not_shared(name: str, processes: int, mesh: str) -> str:
    return f"{processes} processes can't have it" if rules_of(name).one_process else f"weights split as {mesh} can't have it"


def _device_of(world: World, planned: str) -> str:
    """The plan is of the first process; each has a device of its own."""
    kind = planned.partition(":")[0]
    return kind if kind == "cpu" else f"{kind}:{world.local_rank % max(1, torch.accelerator.device_count())}"
