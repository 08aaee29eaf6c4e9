"""A run from its recipe to its result, by one process or by many: built, planned, trained and written down.

The first process finds or makes the run's folder, plans, and writes; the others are told, and train beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flatout import __version__
from flatout.base.errors import PeerLost, Stopped, TrainingError, UsageError
from flatout.base.events import EventLog, Observer
from flatout.base.source import lasting_text
from flatout.engine.job import Job
from flatout.engine.loop import train
from flatout.engine.parallel.mesh import check_fits, parse_mesh
from flatout.engine.settings import Settings
from flatout.machine.device import pick_device
from flatout.measure.receipt import Receipt
from flatout.plan.knobs.all import off_when_shared
from flatout.plan.layouts.fitting import LayoutChoice
from flatout.plan.make import checked_plan, plan_of_share
from flatout.plan.plan import Plan
from flatout.recipe.build import Identity, build_job, check_job, code_of, identity
from flatout.recipe.schema import Recipe
from flatout.runs.layout_trials import fastest
from flatout.runs.record import said_in_words, so_far, status_after, status_of, write_beginning, write_result
from flatout.runs.sharing import as_shared_now, choose_layout, why_not_shared
from flatout.runs.unlike import left_unfinished
from flatout.store.lock import StartLock
from flatout.store.run_folder import RunFolder, check_place, create, find_unfinished
from flatout.world.agreement import by_first, check_same, on_all, reason_of
from flatout.world.joining import join
from flatout.world.watch import Failed, Lost, News, NoWatch, StoreLost
from flatout.world.world import World

if TYPE_CHECKING:
    from flatout.world.watch.watch import RankWatch


@dataclass(frozen=True)
class RunOptions:
    """What `run` was given beside the recipe."""

    runs: Path
    fresh: bool
    observers: tuple[Observer, ...]
    cache: Path | None
    planning_s: float

    def say(self, line: str) -> None:
        """Observers are told of trials; there is no run yet whose events they could be."""
        for observer in self.observers:
            observer({"kind": "planning", "t": 0.0, "at": round(time.time(), 3), "line": line})


@contextmanager
def joined(recipe: Recipe) -> Iterator[World]:
    """The processes that a launcher has started; this one by itself, where there is none."""
    world = join(pick_device(recipe.pins.get("device", "auto")))
    try:
        yield world
    finally:
        world.close()


def run_in(world: World, recipe: Recipe, asked: RunOptions) -> RunFolder:
    """Every process of the world calls it. The folder holds the result when it returns."""
    axes = on_all(world, lambda: parse_mesh(recipe.pins.get("mesh", ""), world.size))
    job = _built(world, recipe, asked.cache)
    on_all(world, lambda: check_fits(job.model, axes, job.tensor_plan, recipe.pins.get("pipeline", Settings.pipeline)))
    own = identity(recipe, job)
    code = code_of(recipe, job) if world.size > 1 else ""
    about_code = hashlib.sha256(f"{own.whole} {code}".encode()).hexdigest()
    mine = {**_versions(), "recipe": _written(recipe), "data": job.data.fingerprint(), "code": about_code}
    check_same(world, mine, lambda: code)
    try_out = partial(fastest, world, recipe, job, runs=asked.runs, cache=asked.cache, limit_s=asked.planning_s, say=asked.say)
    with ExitStack() as held:
        starting = held.enter_context(ExitStack())

        def look() -> dict[str, Any]:
            if asked.fresh:
                return {"mesh": ""}
            check_place(asked.runs)
            starting.enter_context(StartLock(asked.runs, own.whole))
            return {"mesh": _mesh_of_unfinished(asked.runs, own.whole)}

        begun_with = by_first(world, look)["mesh"]
        layout = choose_layout(world, recipe, job, asked.cache, begun_with, try_out)
        begun = by_first(world, lambda: _begin(world, layout, recipe, job, own, asked))
        folder, plan = RunFolder(Path(begun["folder"])), Plan.from_dict(begun["plan"])
        shared, off = as_shared_now(world, recipe, layout, plan)
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
                    write_beginning(folder, recipe, plan, job, receipt)
                logs.append(held.enter_context(EventLog(folder.events_path, asked.observers)))
            return {}

        by_first(world, start)
        events = logs[0] if logs else held.enter_context(EventLog(None))
        if begun["left"] is not None:
            events.emit("not_resumed", **begun["left"])
        for name, value in off.items():
            events.emit("degraded", what=name, value=value, why=why_not_shared(name, world.size, layout.mesh))
        with said_in_words(folder):
            _train(world, job, shared, folder, events, asked.cache)
    return folder


def _mesh_of_unfinished(runs: Path, key: str) -> str:
    folder = find_unfinished(runs, key)
    return "" if folder is None or not folder.begun else folder.parsed("plan.json", Plan.from_dict).settings.mesh


def _built(world: World, recipe: Recipe, cache: Path | None) -> Job:
    """By the first process first: what it writes into the cache, the others find there."""
    if world.is_first:
        job = on_all(world, lambda: build_job(recipe, cache))
        on_all(world, lambda: None)
        return job
    on_all(world, lambda: None)
    return on_all(world, lambda: build_job(recipe, cache))


def _begin(world: World, layout: LayoutChoice, recipe: Recipe, job: Job, own: Identity, asked: RunOptions) -> dict[str, Any]:
    folder = None if asked.fresh else find_unfinished(asked.runs, own.whole)
    if folder is not None and folder.begun:
        plan = folder.parsed("plan.json", Plan.from_dict)
        return {"folder": str(folder.path), "plan": plan.to_dict(), "begun": True, "receipt": None, "left": None}
    left = None
    if folder is None:
        check_place(asked.runs)
        left = None if asked.fresh else left_unfinished(asked.runs, recipe, own)
        if left is not None:
            asked.say(left.words())
    plan, receipt = _planned(world, layout, recipe, job, asked)
    if folder is None:
        folder = create(asked.runs, recipe.stem, own.whole, __version__, parts=dict(own.parts))
    told = None if receipt is None else receipt.to_dict()
    about_left = None if left is None else left.fields()
    return {"folder": str(folder.path), "plan": plan.to_dict(), "begun": False, "receipt": told, "left": about_left}


def _planned(world: World, layout: LayoutChoice, recipe: Recipe, job: Job, asked: RunOptions) -> tuple[Plan, Receipt | None]:
    say = asked.say
    if world.size == 1:
        return checked_plan(recipe, job, asked.cache, limit_s=asked.planning_s, say=say)
    if recipe.pins.get("graph"):
        raise UsageError(f"graph=on is for one process, and there are {world.size}: --off graph")
    axes = parse_mesh(layout.mesh, world.size)
    split = [name for name, size in axes.items() if size > 1 and name != "data"]
    if split and asked.planning_s > 0:
        say(f"a model split by {' and '.join(split)}: settings are chosen by prediction, none is tried")
    off = off_when_shared(world.size, layout.mesh)
    pins = {**off, **layout.settings, **recipe.pins, "graph": False, "mesh": layout.mesh}
    limit_s = 0.0 if split else asked.planning_s
    shares = axes["data"] * axes["shard"]
    plan, receipt = plan_of_share(recipe, pins, job, shares, asked.cache, limit_s=limit_s, say=say)
    ours = {name: why_not_shared(name, world.size, layout.mesh) for name in off if name not in recipe.pins}
    ours |= {name: f"without it, {layout.mesh} should not fit" for name in layout.settings if name not in recipe.pins}
    reasons = {"mesh": (layout.why, layout.source), **{name: (why, "default") for name, why in ours.items()}}
    choices = []
    for choice in plan.choices:
        why, source = reasons.get(choice.name, (choice.why, choice.source))
        choices.append(replace(choice, why=why, source=source))
    return replace(plan, choices=tuple(choices)), receipt


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
        **({} if world.size == 1 else {"processes": world.size, "mesh": plan.settings.mesh}),
    )

    def keep_end(status: str, reason: str) -> None:
        if world.is_first:
            write_result(folder, {"status": status, "reason": reason, **so_far(folder), "plan": plan.to_dict()})

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
            folder.write("result.json", {**result, "plan": plan.to_dict()})
        return {}

    by_first(world, write)
    world.barrier()


def watch_over(world: World, events: EventLog, keep_end: Callable[[str, str], None]) -> RankWatch | NoWatch:
    """Of several processes: who hangs, is slow, has failed or is gone. What nobody can go on after ends this one.

    `keep_end`: is told a status and why.
    """
    if world.size == 1:
        return NoWatch()

    from flatout.world.watch.watch import RankWatch

    def on_news(news: News) -> None:
        if isinstance(news, Failed | Lost | StoreLost):
            events.emit("failed", error=news.words())
            keep_end(status_of(news), news.short())
            if news.mine:
                _say_aloud(news.words())
            os._exit(TrainingError.exit_code)  # its main thread may wait for ever for somebody who is gone
        events.emit("degraded", what=news.kind, why=news.words())
        if not world.is_first:  # which has the events, and so whoever looks at them
            _say_aloud(news.words())

    return RankWatch(world.store, world.rank, world.size, on_news)


def _say_aloud(words: str) -> None:
    sys.stderr.write(f"flatout: {words}\n")
    sys.stderr.flush()


def _cause(watch: RankWatch | NoWatch, world: World, ended: BaseException) -> BaseException:
    """What ended the run, which may have been another process."""
    if isinstance(ended, Stopped | KeyboardInterrupt | SystemExit):
        return ended
    cause = watch.fail(ended)
    if isinstance(cause, Failed) and cause.rank == world.rank:
        return ended
    return PeerLost(cause.words())


def _versions() -> dict[str, str]:
    return {"flatout": __version__, "torch": str(torch.__version__)}


def _written(recipe: Recipe) -> str:
    return json.dumps(recipe.written(), indent=1, sort_keys=True, default=lasting_text)
