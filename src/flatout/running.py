"""A run from its recipe to its result, by one process or by many: built, planned, trained and written down.

The first process finds or makes the run's folder, plans, and writes; the others are told, and train beside it.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from flatout import __version__
from flatout.base.errors import Diverged, FlatoutError, PeerLost, Stopped, StoreError, TrainingError, UsageError
from flatout.base.events import Event, EventLog, Observer, read_events
from flatout.building import build_job, check_job, code_of, identity
from flatout.data.data import Data
from flatout.data.kept import remember
from flatout.engine.job import Job
from flatout.engine.loop import train
from flatout.engine.parallel.fitting import check_fits
from flatout.engine.parallel.mesh import parse_mesh
from flatout.engine.settings import conflicts
from flatout.machine.device import device_name, pick_device
from flatout.machine.facts import read_facts
from flatout.machine.joining import join
from flatout.machine.links import measure_links
from flatout.machine.watch import Failed, Lost, News, NoWatch, StoreLost, Watch
from flatout.machine.world import World
from flatout.measure.receipt import Receipt
from flatout.plan.layouts.here import LayoutChoice, cluster_of, suggest, surely_fits
from flatout.plan.plan import Plan
from flatout.planned import ceilings_of, checked_plan, plan_of_share
from flatout.recipe import Recipe
from flatout.store.run_folder import RunFolder, check_place, create, find_unfinished

Found = TypeVar("Found")


@dataclass(frozen=True)
class Asked:
    """What `run` was given beside the recipe."""

    runs: Path
    fresh: bool
    observers: tuple[Observer, ...]
    cache: Path | None
    planning_s: float


@contextmanager
def joined(recipe: Recipe) -> Iterator[World]:
    """The processes that a launcher has started; this one by itself, where there is none."""
    world = join(pick_device(str(recipe.settings.get("device", "auto"))))
    try:
        yield world
    finally:
        world.close()


def run_in(world: World, recipe: Recipe, asked: Asked) -> RunFolder:
    """Every process of the world calls it. The folder holds the result when it returns."""
    axes = _on_all(world, lambda: parse_mesh(str(recipe.settings.get("mesh", "")), world.size))
    job = _built(world, recipe, asked.cache)
    _on_all(world, lambda: check_fits(job.model, axes, job.tensor_plan, str(recipe.settings.get("pipeline", "1f1b"))))
    key = identity(recipe, job)
    mine = {**_versions(), "recipe": _written(recipe), "data": job.data.fingerprint(), "code": key}
    check_same(world, mine, lambda: code_of(recipe, job))
    layout = _layout(world, recipe, job, asked.cache)
    begun = _by_first(world, lambda: _begin(world, layout, recipe, job, key, asked))
    folder, plan = RunFolder(Path(begun["folder"])), Plan.from_dict(begun["plan"])
    shared, off = _as_shared_now(world, recipe, layout, plan)
    if begun["begun"]:
        check_job(job, pick_device(plan.settings.device))
    with ExitStack() as held:
        logs: list[EventLog] = []

        def start() -> dict[str, Any]:
            with _said(folder):
                held.enter_context(folder.locked())
                if not begun["begun"]:
                    receipt = None if begun["receipt"] is None else Receipt.from_dict(begun["receipt"])
                    _write_beginning(folder, recipe, plan, job, receipt)
                logs.append(held.enter_context(EventLog(folder.events_path, asked.observers)))
            return {}

        _by_first(world, start)
        events = logs[0] if logs else held.enter_context(EventLog(None))
        for name, value in off.items():
            events.emit("degraded", what=name, value=value, why=_why_not_together(name, world.size, layout.mesh))
        with _said(folder):
            _train(world, job, shared, folder, events, asked.cache)
    return folder


def _built(world: World, recipe: Recipe, cache: Path | None) -> Job:
    """By the first process first: what it writes into the cache, the others find there."""
    if world.is_first:
        job = _on_all(world, lambda: build_job(recipe, cache))
        _on_all(world, lambda: None)
        return job
    _on_all(world, lambda: None)
    return _on_all(world, lambda: build_job(recipe, cache))


def _layout(world: World, recipe: Recipe, job: Job, cache: Path | None) -> LayoutChoice:
    """As the recipe has it; else copies, where there is memory for them, or what should be fastest of what should fit."""
    asked = str(recipe.settings.get("mesh", ""))
    if asked or world.size == 1:
        return LayoutChoice(asked, "pinned by you", "pinned")
    if job.exchange is not None:
        return LayoutChoice(f"data={world.size}", "processes that train by themselves for a while have all weights")
    planned = str(pick_device(str(recipe.settings.get("device", "auto"))))
    device = torch.device(_device_of(world, planned))
    memory_bytes = min(world.gather(_memory_bytes(device, world)))
    if (sure := surely_fits(job, world.size, memory_bytes)) is not None:
        return sure
    links = measure_links(world, device)
    compute_bytes, product = (4, "fp32") if device.type == "cpu" else (2, "bf16")

    def estimate() -> dict[str, Any]:
        cluster = cluster_of(device_name(device), memory_bytes, world.local_size, ceilings_of(device, cache), links, product)
        return asdict(suggest(job, world.size, cluster, compute_bytes=compute_bytes))

    return LayoutChoice(**_by_first(world, estimate))


def _memory_bytes(device: torch.device, world: World) -> int:
    """Of a process's own device; processes on a CPU share the host's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return read_facts().memory_usable_bytes // max(1, world.local_size)


def _begin(world: World, layout: LayoutChoice, recipe: Recipe, job: Job, key: str, asked: Asked) -> dict[str, Any]:
    folder = None if asked.fresh else find_unfinished(asked.runs, key)
    if folder is not None and folder.begun:
        return {"folder": str(folder.path), "plan": folder.read("plan.json"), "begun": True, "receipt": None}
    if folder is None:
        check_place(asked.runs)
    plan, receipt = _planned(world, layout, recipe, job, asked)
    if folder is None:
        folder = create(asked.runs, recipe.stem, key, __version__)
    told = None if receipt is None else receipt.to_dict()
    return {"folder": str(folder.path), "plan": plan.to_dict(), "begun": False, "receipt": told}


def _planned(world: World, layout: LayoutChoice, recipe: Recipe, job: Job, asked: Asked) -> tuple[Plan, Receipt | None]:
    """Observers are told of the trials; there is no run yet whose events they could be."""

    def say(line: str) -> None:
        for observer in asked.observers:
            observer({"kind": "planning", "t": 0.0, "at": round(time.time(), 3), "line": line})

    if world.size == 1:
        return checked_plan(recipe, job, asked.cache, limit_s=asked.planning_s, say=say)
    if str(recipe.settings.get("graph", "off")).lower() in ("on", "true", "yes", "1"):
        raise UsageError(f"graph=on is for one process, and there are {world.size}: --off graph")
    axes = parse_mesh(layout.mesh, world.size)
    split = [name for name, size in axes.items() if size > 1 and name != "data"]
    if split and asked.planning_s > 0:
        say(f"a model split by {' and '.join(split)}: settings are chosen by prediction, none is tried")
    off = _not_together(world.size, layout.mesh)
    pins = {**off, **layout.settings, **recipe.settings, "graph": False, "mesh": layout.mesh}
    limit_s = 0.0 if split else asked.planning_s
    shares = axes["data"] * axes["shard"]
    plan, receipt = plan_of_share(recipe, pins, job, shares, asked.cache, limit_s=limit_s, say=say)
    ours = {name: _why_not_together(name, world.size, layout.mesh) for name in off if name not in recipe.settings}
    ours |= {name: f"without it, {layout.mesh} should not fit" for name in layout.settings if name not in recipe.settings}
    reasons = {"mesh": (layout.why, layout.source), **{name: (why, "default") for name, why in ours.items()}}
    choices = []
    for choice in plan.choices:
        why, source = reasons.get(choice.name, (choice.why, choice.source))
        choices.append(replace(choice, why=why, source=source))
    return replace(plan, choices=tuple(choices)), receipt


def _not_together(processes: int, mesh: str) -> dict[str, Any]:
    """What a plan for one process may choose, and several, or a model split over them, can't have."""
    off: dict[str, Any] = {} if processes == 1 else {"graph": False}
    if "tensor" in mesh or "pipeline" in mesh:
        off |= {"loss_head": "plain", "vocabulary_padding": 0}
    return off | ({"compile": "off"} if "pipeline" in mesh else {})


def _why_not_together(name: str, processes: int, mesh: str) -> str:
    return f"{processes} processes can't have it" if name == "graph" else f"weights split as {mesh} can't have it"


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
            _write_result(folder, {"status": status, "reason": reason, **_so_far(folder), "plan": plan.to_dict()})

    watch = watch_over(world, events, keep_end)
    try:
        result = train(job, plan.settings, folder, events, cache, world, watch)
        world.barrier()
        watch.goodbye()
    except BaseException as ended:
        error = ended if world.size == 1 else _cause(watch, world, ended)
        if not isinstance(error, Stopped):
            events.emit("failed", error=_reason(error))
        if isinstance(error, PeerLost) and watch.cause is not None:
            keep_end(_status_of(watch.cause), watch.cause.short())
        else:
            keep_end(_status_after(error), _reason(error))
        if error is ended:
            raise
        raise error from ended
    finally:
        watch.close()

    def write() -> dict[str, Any]:
        with _said(folder):
            folder.write("result.json", {**result, "plan": plan.to_dict()})
        return {}

    _by_first(world, write)
    world.barrier()


def watch_over(world: World, events: EventLog, keep_end: Callable[[str, str], None]) -> Watch | NoWatch:
    """Of several processes: who hangs, is slow, has failed or is gone. What nobody can go on after ends this one.

    `keep_end`: is told a status and why.
    """
    if world.size == 1:
        return NoWatch()

    def on_news(news: News) -> None:
        if isinstance(news, Failed | Lost | StoreLost):
            events.emit("failed", error=news.words())
            keep_end(_status_of(news), news.short())
            if news.mine:
                _say_aloud(news.words())
            os._exit(TrainingError.exit_code)  # its main thread may wait for ever for somebody who is gone
        events.emit("degraded", what=news.kind, why=news.words())
        if not world.is_first:  # which has the events, and so whoever looks at them
            _say_aloud(news.words())

    return Watch(world.store, world.rank, world.size, on_news)


def _say_aloud(words: str) -> None:
    sys.stderr.write(f"flatout: {words}\n")
    sys.stderr.flush()


def _cause(watch: Watch | NoWatch, world: World, ended: BaseException) -> BaseException:
    """What ended the run, which may have been another process."""
    if isinstance(ended, Stopped | KeyboardInterrupt | SystemExit):
        return ended
    cause = watch.fail(ended)
    if isinstance(cause, Failed) and cause.rank == world.rank:
        return ended
    return PeerLost(cause.words())


def _as_shared_now(world: World, recipe: Recipe, layout: LayoutChoice, plan: Plan) -> tuple[Plan, dict[str, Any]]:
    """A run goes on as it was planned, but for how the processes share it: these may be others than those that began it. Also
    what was chosen for those and is switched off for these."""
    settings = replace(plan.settings, mesh=layout.mesh)
    off = {
        name: value
        for name, value in _not_together(world.size, layout.mesh).items()
        if getattr(settings, name) != value and (name == "graph" or name not in recipe.settings)
    }
    if world.size > 1:
        settings = replace(settings, device=_device_of(world, settings.device), **off)
    if settings.mesh != plan.settings.mesh and (problems := conflicts(settings)):
        raise UsageError(
            f"this run was begun with settings that mesh={layout.mesh} can't have: {'; '.join(problems)}. "
            f"Go on with the mesh that it had ({plan.settings.mesh or 'none'}), or start anew with --fresh"
        )
    return replace(plan, settings=settings), off


def _device_of(world: World, planned: str) -> str:
    """The plan is of the first process; each has a device of its own."""
    kind = planned.partition(":")[0]
    return kind if kind == "cpu" else f"{kind}:{world.local_rank % max(1, torch.accelerator.device_count())}"


# ---- several processes, one answer ----


def check_same(world: World, mine: dict[str, str], code: Callable[[], str]) -> None:
    """Everybody has the same recipe, data and versions, or all stop with what differs. Of code, a hash is compared first."""
    said = world.gather(mine)
    for rank, theirs in enumerate(said):
        for name, value in theirs.items():
            if value != said[0][name]:
                texts = world.gather(code()) if name == "code" else [one[name] for one in said]
                raise UsageError(
                    f"rank {rank} has another {name} than rank 0: {_difference(texts[0], texts[rank])}. All processes of a run "
                    "start from the same recipe, code, data and versions: bring them into line"
                )


def _difference(first: str, other: str) -> str:
    """Of texts, the lines that differ."""
    if first == other:
        return "not its text, but values that it uses, such as the weights of a model that was given"
    if "\n" not in first:
        return f"{other}, not {first}"
    lines = difflib.unified_diff(first.splitlines(), other.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "; ".join(changed[:6])


def _versions() -> dict[str, str]:
    return {"flatout": __version__, "torch": str(torch.__version__)}


def _written(recipe: Recipe) -> str:
    return json.dumps(recipe.written(), indent=1, sort_keys=True, default=str)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, FlatoutError) else f"{type(error).__name__}: {error}"


def _by_first(world: World, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the first process makes, told to all; where it fails, all of them do, for that reason."""
    if world.size == 1:
        return make()
    made: dict[str, Any] = {}
    failure: BaseException | None = None
    if world.is_first:
        try:
            made = {"made": make()}
        except BaseException as error:
            failure = error
            made = {"failed": _reason(error)}
    told = world.from_first(made)
    if failure is not None:
        raise failure
    if "failed" in told:
        raise TrainingError(f"rank 0: {told['failed']}")
    found: dict[str, Any] = told["made"]
    return found


def _on_all(world: World, make: Callable[[], Found]) -> Found:
    """What each makes by itself; where one fails, all of them do, and say which and why."""
    made: list[Found] = []
    failure: BaseException | None = None
    try:
        made.append(make())
    except Exception as error:
        failure = error
    said = world.gather("" if failure is None else _reason(failure))
    if failure is not None:
        raise failure
    for rank, reason in enumerate(said):
        if reason:
            raise TrainingError(f"rank {rank}: {reason}")
    return made[0]


# ---- what is written ----


def _so_far(folder: RunFolder) -> dict[str, Any]:
    """What a run that did not end had come to, from its events."""
    last: dict[str, Event] = {event["kind"]: event for event in read_events(folder.events_path)}
    step, evaluation = last.get("step", {}), last.get("evaluation", {})
    metrics = {"train_loss": step.get("loss"), **evaluation.get("metrics", {})}
    return {"steps": step.get("step"), "samples": step.get("samples"), "metrics": metrics} if step else {}


def _status_after(error: BaseException) -> str:
    if isinstance(error, Stopped | KeyboardInterrupt):
        return "stopped"
    return "diverged" if isinstance(error, Diverged) else "failed"


def _status_of(news: Failed | Lost | StoreLost) -> str:
    """A process that is gone interrupts a run, as it does where it is the only one."""
    return "failed" if isinstance(news, Failed) else "interrupted"


@contextmanager
def _said(folder: RunFolder) -> Iterator[None]:
    """What the disk refuses, in words. A run that had not begun leaves nothing behind."""
    try:
        yield
    except OSError as error:
        kept = "its checkpoints are as they were: mend that, and the same command goes on from the last one"
        if not folder.begun:
            shutil.rmtree(folder.path, ignore_errors=True)
            kept = "nothing was trained: mend that, or choose another place with --runs"
        place = error.filename or folder.path
        raise StoreError(f"{place}: {error.strerror or error}; {kept}") from error


def _write_result(folder: RunFolder, result: dict[str, Any]) -> None:
    with suppress(OSError):  # the error that ended the run is the one to show
        folder.write("result.json", result)


def _write_beginning(folder: RunFolder, recipe: Recipe, plan: Plan, job: Job, receipt: Receipt | None) -> None:
    python = recipe.source is not None and recipe.source.suffix == ".py"
    objects = (
        isinstance(recipe.data, Data) or callable(recipe.model) or callable(recipe.objective) or callable(recipe.optimizer)
    )
    source = "recipe.py" if python else None if objects else "recipe.json"
    overrides, pins = recipe.given
    given = {"file": str(recipe.source.resolve()) if recipe.source else None, "overrides": list(overrides), "pins": pins}
    folder.write("recipe.json", recipe.written())
    folder.write("data.json", remember(job.data))
    folder.write("origin.json", {**given, "folder": str(recipe.folder.resolve()), "source": source})
    if python:
        assert recipe.source is not None
        shutil.copyfile(recipe.source, folder.path / "recipe.py")
    folder.write("environment.json", read_facts().to_dict())
    if receipt is not None:
        folder.write("receipt.json", receipt.to_dict())
    folder.write("plan.json", plan.to_dict())  # the last one: with it a run has begun
