"""`run`: from a recipe to a finished run. Build the job, find or create the run's folder, plan, write the plan down, train.

Several processes do the same at the same time: the first one plans and writes, the others get its answers (`by_first`). What
only several processes need is in sharing.py and watching.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout import __version__
from flatout.base.errors import PeerLost, Stopped
from flatout.base.events import EventLog, Observer
from flatout.base.units import parse_seconds
from flatout.data.own_fit import has_fit, with_fit_of
from flatout.engine.job import Job
from flatout.engine.loop import train
from flatout.engine.settings import Settings
from flatout.machine.device import pick_device
from flatout.measure.receipt import Receipt
from flatout.models.adapters import ADAPTER, is_adapted, save_adapters
from flatout.plan.layouts.fitting import LayoutChoice
from flatout.plan.make import checked_plan
from flatout.plan.plan import Plan
from flatout.plan.thread_times import with_pinned_threads
from flatout.recipe.build import Identity, build_job, check_job, identity
from flatout.recipe.outputs import why_outputs_are_doubtful
from flatout.recipe.schema import Recipe
from flatout.runs.moved import description_of_moved
from flatout.runs.record import Run, said_in_words, so_far, status_after, status_of, write_beginning, write_result
from flatout.runs.trained import CACHE, trained_model
from flatout.runs.unlike import left_unfinished
from flatout.store.lock import StartLock
from flatout.store.run_folder import RATE_FILE, RunFolder, check_place, create, find_unfinished
from flatout.world.agreement import by_first, on_all, reason_of
from flatout.world.joining import join
from flatout.world.watch import NoWatch
from flatout.world.world import World

if TYPE_CHECKING:
    from flatout.world.watch.watch import RankWatch

PLANNING = "5 min"


@dataclass(frozen=True)
class RunOptions:
    """The arguments of `run` besides the recipe."""

    runs: Path
    fresh: bool
    observers: tuple[Observer, ...]
    cache: Path | None
    planning_s: float

    def say(self, line: str) -> None:
        """Observers hear about trials before the run exists, so it is no event of the run."""
        for observer in self.observers:
            observer({"kind": "planning", "t": 0.0, "at": round(time.time(), 3), "line": line})


def run(
    recipe: Recipe,
    *,
    runs: Path | str = "runs",
    fresh: bool = False,
    observers: Sequence[Observer] = (),
    cache: Path | str | None = CACHE,
    planning: str = PLANNING,
) -> Run:
    """Plan and train. An unfinished run of the same recipe, code and data is resumed, unless `fresh`.

    Started by torchrun, Slurm, Kubeflow or Ray Train, the processes train together.

    `planning` is the time limit for trials of settings, such as "2 min"; "off": no trials.
    """
    asked = RunOptions(Path(runs), fresh, tuple(observers), None if cache is None else Path(cache), planning_limit(planning))
    world = join(pick_device(recipe.pins.get("device", "auto")))
    try:
        if recipe.draft and world.is_first:
            asked.say(recipe.draft)
        return Run(_run_in(world, recipe, asked), recipe)
    finally:
        world.close()


def planning_limit(written: str) -> float:
    """In seconds; 0 for "off"."""
    return 0.0 if written == "off" else parse_seconds(written)


def _run_in(world: World, recipe: Recipe, asked: RunOptions) -> RunFolder:
    """Every process of the world calls it. When it returns, the folder holds the result."""
    job = _built(world, recipe, asked.cache)
    own = identity(recipe, job)
    if not asked.fresh and has_fit(job.data):
        kept = by_first(world, lambda: {"kept": description_of_moved(asked.runs, recipe, job, own)})["kept"]
        if kept is not None:
            job = on_all(world, partial(build_job, recipe, asked.cache, with_fit_of(job.data, kept)))
            own = identity(recipe, job)
    if world.size > 1:
        from flatout.runs.sharing import check_all_agree  # here: one process starts sooner without it

        check_all_agree(world, recipe, job, own)
    with ExitStack() as held:
        starting = held.enter_context(ExitStack())

        def look() -> dict[str, Any]:
            if asked.fresh:
                return {"mesh": ""}
            check_place(asked.runs)
            starting.enter_context(StartLock(asked.runs, own.whole))
            return {"mesh": _mesh_of_unfinished(asked.runs, own.whole)}

        begun_with = by_first(world, look)["mesh"]
        layout = _layout(world, recipe, job, asked, begun_with)
        begun = by_first(world, lambda: _begin(world, layout, recipe, job, own, asked))
        folder, planned = RunFolder(Path(begun["folder"])), Plan.from_dict(begun["plan"])
        if begun["rate"] is not None:
            job = replace(job, lr=begun["rate"]["lr"])
        plan, off = planned, dict[str, tuple[Any, str]]()
        if world.size > 1 or planned.settings.mesh != layout.mesh:
            from flatout.runs.sharing import adapt_plan

            plan, off = adapt_plan(world, recipe, layout, planned)
        if begun["begun"]:
            check_job(job, pick_device(plan.settings.device))
        logs: list[EventLog] = []

        def start() -> dict[str, Any]:
            with said_in_words(folder):
                held.enter_context(folder.locked())
                starting.close()
                folder.adopt()
                if not begun["begun"]:
                    receipt = None if begun["receipt"] is None else Receipt.from_dict(begun["receipt"])
                    write_beginning(folder, recipe, planned, job, receipt, begun["rate"])
                logs.append(held.enter_context(EventLog(folder.events_path, asked.observers)))
            return {}

        by_first(world, start)
        events = logs[0] if logs else held.enter_context(EventLog(None))
        if begun["left"] is not None:
            events.emit("not_resumed", **begun["left"])
        if begun["rate"] is not None and not begun["begun"]:
            found = begun["rate"]
            events.emit("rate_found", **{name: found[name] for name in ("lr", "low", "high", "why", "steps", "seconds")})
        for name, (value, why) in off.items():
            events.emit("degraded", what=name, value=value, why=why)
        if world.is_first and not begun["begun"]:
            doubt = why_outputs_are_doubtful(job, pick_device(plan.settings.device))
            if doubt is not None:
                events.emit("degraded", what="output", why=doubt)
        with said_in_words(folder):
            _train(world, job, plan, folder, events, asked.cache)
    return folder


def _built(world: World, recipe: Recipe, cache: Path | None) -> Job:
    """The first process builds first, so that the others find its files in the cache."""
    mesh, build = recipe.pins.get("mesh", ""), partial(build_job, recipe, cache)
    if world.size == 1 and not mesh:
        return build()
    from flatout.engine.parallel.mesh import check_fits, parse_mesh

    axes = on_all(world, lambda: parse_mesh(mesh, world.size))
    if world.is_first:
        job = on_all(world, build)
        on_all(world, lambda: None)
    else:
        on_all(world, lambda: None)
        job = on_all(world, build)
    on_all(world, lambda: check_fits(job.model, axes, job.tensor_plan, recipe.pins.get("pipeline", Settings.pipeline)))
    return job


def _mesh_of_unfinished(runs: Path, key: str) -> str:
    folder = find_unfinished(runs, key)
    return "" if folder is None or not folder.begun else folder.parsed("plan.json", Plan.from_dict).settings.mesh


def _layout(world: World, recipe: Recipe, job: Job, asked: RunOptions, begun_with: str) -> LayoutChoice:
    if world.size == 1:
        return LayoutChoice(recipe.pins.get("mesh", ""), "pinned by you", "pinned")
    from flatout.runs.layout_trials import fastest
    from flatout.runs.sharing import choose_layout

    try_out = partial(fastest, world, recipe, job, runs=asked.runs, cache=asked.cache, limit_s=asked.planning_s, say=asked.say)
    return choose_layout(world, recipe, job, asked.cache, begun_with, try_out)


def _begin(world: World, layout: LayoutChoice, recipe: Recipe, job: Job, own: Identity, asked: RunOptions) -> dict[str, Any]:
    """The folder and plan of the unfinished run that is resumed, or of a new run."""
    folder = None if asked.fresh else find_unfinished(asked.runs, own.whole)
    if folder is not None and folder.begun:
        plan = with_pinned_threads(folder.parsed("plan.json", Plan.from_dict), recipe.pins)
        rate = folder.read(RATE_FILE) if recipe.searches_rate else None
        return {"folder": str(folder.path), "plan": plan.to_dict(), "begun": True, "receipt": None, "left": None, "rate": rate}
    left = None
    if folder is None:
        check_place(asked.runs)
        left = None if asked.fresh else left_unfinished(asked.runs, recipe, own)
        if left is not None:
            asked.say(left.words())
    rate = None
    if recipe.searches_rate:
        from flatout.runs.rates.auto import rate_for_run  # here: a run with a given rate starts sooner without it

        rate = rate_for_run(recipe, job, asked.cache, asked.say)
        job = replace(job, lr=rate.rate)
    if world.size == 1:
        plan, receipt = checked_plan(recipe, job, asked.cache, limit_s=asked.planning_s, say=asked.say)
    else:
        from flatout.runs.sharing import plan_for_all

        plan, receipt = plan_for_all(world, layout, recipe, job, asked.cache, limit_s=asked.planning_s, say=asked.say)
    if folder is None:
        folder = create(asked.runs, recipe.stem, own.whole, __version__, parts=dict(own.parts))
    return {
        "folder": str(folder.path),
        "plan": plan.to_dict(),
        "begun": False,
        "receipt": None if receipt is None else receipt.to_dict(),
        "left": None if left is None else left.fields(),
        "rate": None if rate is None else rate.to_dict(),
    }


def _train(world: World, job: Job, plan: Plan, folder: RunFolder, events: EventLog, cache: Path | None) -> None:
    prediction = plan.prediction
    events.emit(
        "planned",
        run=folder.name,
        model=plan.model,
        machine=plan.machine,
        unit=plan.unit,
        per_sample=plan.per_sample,
        flops_per_sample=prediction.flops_per_sample,
        ceiling_flops=prediction.ceiling_flops,
        **({} if job.price_per_hour is None else {"price_per_hour": job.price_per_hour}),
        **({} if world.size == 1 else {"processes": world.size, "mesh": plan.settings.mesh}),
    )

    def keep_end(status: str, reason: str) -> None:
        if world.is_first:
            write_result(folder, {"status": status, "reason": reason, **so_far(folder), "plan": plan.to_dict()})

    watch: RankWatch | NoWatch = NoWatch()
    if world.size > 1:
        from flatout.runs.watching import watch_over

        watch = watch_over(world, events, keep_end)
    try:
        result = train(job, plan.settings, folder, events, cache, world, watch)
        world.barrier()
        watch.goodbye()
    except BaseException as ended:
        error = ended if world.size == 1 else _cause(watch, world, ended)
        if not isinstance(error, Stopped):
            events.emit("failed", error=reason_of(error))
        if isinstance(error, PeerLost) and watch.cause is not None:
            keep_end(status_of(watch.cause), watch.cause.short())
        else:
            keep_end(status_after(error), reason_of(error))
        if error is ended:
            raise
        raise error from ended
    finally:
        watch.close()

    def write() -> dict[str, Any]:
        with said_in_words(folder):
            if is_adapted(job.model):
                save_adapters(trained_model(folder, job), folder.path / ADAPTER)
            folder.write("result.json", {**result, "plan": plan.to_dict()})
        return {}

    by_first(world, write)
    world.barrier()


def _cause(watch: RankWatch | NoWatch, world: World, ended: BaseException) -> BaseException:
    from flatout.runs.watching import cause_of

    return cause_of(watch, world, ended)
