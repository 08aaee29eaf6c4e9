"""The executors of a server, on all its devices: started, connected, replaced when they end, and retired by new versions.

Each runs all models. One that ends is replaced by one with the same name and models, so fronts ask it again for what was not
answered. New versions come with new executors.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, MachineError
from flatout.base.latency_goal import LatencyGoal
from flatout.machine.host import usable_cores
from flatout.serving.control import ControlLine
from flatout.serving.counters import MOST_MODELS
from flatout.serving.executor_sums import added
from flatout.serving.kept_packages import keep_package
from flatout.serving.loading import ModelOrder
from flatout.serving.options import ServeOptions, WantedModel
from flatout.serving.places import devices_named
from flatout.serving.processes import Processes
from flatout.serving.running import RunningExecutor, RunningModel

_LOOK_S = 0.005
_COME_BACK_S = 10.0

Say = Callable[[str], None]
Connect = Callable[[RunningExecutor], None]


class Executors:
    """`kept` is a folder for packages: those given may be replaced at any time. `connect` gets every executor that is ready."""

    def __init__(self, options: ServeOptions, processes: Processes, kept: Path, connect: Connect, say: Say) -> None:
        self._options, self._processes, self._kept, self._connect, self._say = options, processes, kept, connect, say
        self.devices = devices_named(options.device)
        self.by_name: dict[str, RunningExecutor] = {}
        self.current: tuple[str, ...] = ()  # those that get requests
        self.served: dict[str, RunningModel] = {}
        self.beside: tuple[str, ...] = ()  # those of a canary
        self.beside_model: RunningModel | None = None
        self.controls: tuple[str, ...] = ()  # those of the stable version that get as many requests as the canary
        self.control_model: RunningModel | None = None
        self.beside_ends = 0  # how often a process of the canary has ended
        self.places: dict[str, int] = {}  # of counters, by the model's name
        self._versions: dict[str, int] = {}
        self._folders: set[Path] = set()  # of all versions that are kept
        self._numbers, self._generations = itertools.count(1), itertools.count(1)
        self._past: dict[str, dict[str, Any]] = {}  # sums of executors that have ended, by model

    @property
    def on_cpu(self) -> bool:
        return self.devices == ("cpu",)

    def _threads(self) -> int:
        """On a CPU one core is left to the fronts, if there are more than two: a model on one of two is 1.4 times as slow."""
        cores = usable_cores()
        return max(1, max(2, cores - 1) // self._options.executors) if self.on_cpu else 1

    def running(self) -> list[RunningExecutor]:
        """Those that get requests; one that has just ended is not among them."""
        return [self.by_name[name] for name in self.current if name in self.by_name]

    def curves(self) -> list[Any]:
        """Of all models, as the executors have measured them."""
        return [model["curve"] for executor in self.running() for model in executor.ready.result()]

    def sums(self) -> dict[str, dict[str, Any]]:
        """Of all executors that ever ran, by model."""
        found: dict[str, dict[str, Any]] = {name: dict(sums) for name, sums in self._past.items()}
        for executor in self.by_name.values():
            for model in executor.statistics.get("models", ()):
                found[model["name"]] = added(found.get(model["name"], {}), model)
        return found

    # ---- starting ----

    async def started(self, wanted: Mapping[str, WantedModel], renewed: Collection[str]) -> list[RunningExecutor]:
        """Ready, each with all wanted models. Those of `renewed` are read again from their folders; others stay as they are.
        If one can't be started, the others are ended. The first is ready before the others begin: what it compiles and measures
        is kept for them."""
        models = []
        for model in wanted.values():
            before = None if model.name in renewed else self.served.get(model.name)
            models.append(before or await self._versioned(model))
        generation, each = next(self._generations), self._options.executors
        places = [(f"{device}/{generation}/{place}", device) for device in self.devices for place in range(each)]
        found = [await self._ready(*places[0], tuple(models))]
        tries = (self._ready(name, device, tuple(models)) for name, device in places[1:])
        others = await asyncio.gather(*tries, return_exceptions=True)
        found += [one for one in others if isinstance(one, RunningExecutor)]
        for problem in others:
            if isinstance(problem, BaseException):
                for executor in found:
                    self._end(executor)
                raise problem
        return found

    async def start_beside(self, wanted: WantedModel) -> RunningModel:
        """A canary, in processes of its own: what it does to them harms nobody else. One on each device."""
        model = await self._versioned(wanted)
        names = self._names_of("canary")
        self.beside, self.beside_model, self.beside_ends = names, model, 0
        await self._all_ready(names, model)
        return model

    async def start_control(self, name: str) -> None:
        """What is served under this name once more, in processes of its own, for as many requests as the canary gets."""
        model = replace(self.served[name], number=next(self._numbers))
        names = self._names_of("control")
        self.controls, self.control_model = names, model
        await self._all_ready(names, model)

    def _names_of(self, what: str) -> tuple[str, ...]:
        generation = next(self._generations)
        return tuple(f"{device}/{generation}/{what}" for device in self.devices)

    async def _all_ready(self, names: Sequence[str], model: RunningModel) -> None:
        try:
            for name, device in zip(names, self.devices, strict=True):
                await self._ready(name, device, (model,))
        except BaseException:
            self.end_beside(()) if names == self.beside else self.end_control(())
            raise

    def end_beside(self, fronts: Collection[int]) -> None:
        """These fronts were told to ask it no more."""
        names, self.beside, self.beside_model = self.beside, (), None
        for name in names:
            self.retire(name, fronts)
        self.forget_versions()

    def end_control(self, fronts: Collection[int]) -> None:
        names, self.controls, self.control_model = self.controls, (), None
        for name in names:
            self.retire(name, fronts)
        self.forget_versions()

    def serve_from(self, executors: Sequence[RunningExecutor]) -> None:
        self.current = tuple(executor.name for executor in executors)
        self.served = {model.name: model for model in executors[0].models}
        self._versions |= {model.name: int(model.version) for model in executors[0].models}

    async def _versioned(self, wanted: WantedModel) -> RunningModel:
        version, number = self._versions.get(wanted.name, 0) + 1, next(self._numbers)
        if wanted.name not in self.places and len(self.places) >= MOST_MODELS - 1:
            raise MachineError(f"a server has at most {MOST_MODELS - 1} names of models")
        place = self.places.setdefault(wanted.name, len(self.places) + 1)
        goal = wanted.goal or self._options.goal
        path = self._kept / f"{place}-{version}-{number}"
        self._folders.add(path)
        await asyncio.to_thread(keep_package, wanted.path, path)  # it reads all of it
        return RunningModel(wanted.name, str(version), number, path, goal, place)

    async def _ready(self, name: str, device: str, models: tuple[RunningModel, ...]) -> RunningExecutor:
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._processes.start({"kind": "executor"}, [theirs.fileno()])
        loop = asyncio.get_running_loop()
        executor = RunningExecutor(name, device, models, pid, ControlLine(ours), loop.create_future(), time.monotonic())
        self.by_name[name] = executor
        loop.add_reader(ours.fileno(), self._hear, executor)
        orders = [
            ModelOrder(one.number, one.name, one.path, LatencyGoal.parse(one.goal) if one.goal else None) for one in models
        ]
        cache = None if self._options.cache is None else str(self._options.cache)
        executor.line.send({"do": "load", "models": [order.to_json() for order in orders], "device": device,
                            "threads": self._threads(), "cache": cache, "compilers": self._options.compilers,
                            "photos_on": self._options.photos_on})  # fmt: skip
        try:
            loaded = await executor.ready
        except BaseException:
            self._end(executor)
            raise
        if executor.has_ended:
            raise MachineError("the process of the models ended when it had loaded them")
        executor.takes_files = frozenset(one["number"] for one in loaded if one["takes_files"])
        executor.is_ready = True
        self._connect(executor)
        return executor

    def _hear(self, executor: RunningExecutor) -> None:
        messages = executor.line.receive()
        if messages is None:
            asyncio.get_running_loop().remove_reader(executor.line.fileno())
            self._ended(executor)
            return
        executor.alive_s = time.monotonic()
        for message in messages:
            content = message.content
            match content["say"]:
                case "loading":
                    self._say(content["line"])
                case "ready" if not executor.ready.done():
                    executor.ready.set_result(content["models"])
                case "failed" if not executor.ready.done():
                    executor.ready.set_exception(MachineError(content["problem"]))
                case "statistics":
                    executor.statistics = content
                case "event":
                    self._say(content["line"])

    # ---- ending ----

    def _ended(self, executor: RunningExecutor) -> None:
        if self.by_name.get(executor.name) is not executor:
            return
        how = self._processes.how_it_ended(executor)
        if not executor.ready.done():
            executor.ready.set_exception(MachineError(f"the process of the models {how}"))
            return
        if not executor.is_ready:
            return
        self._end(executor)
        if executor.retires or self._processes.is_over:
            return
        is_canary = executor.name in self.beside
        self.beside_ends += is_canary
        of = "canary" if is_canary else "control" if executor.name in self.controls else "models"
        self._say(f"the process of the {of} {how}; a new one is started, and asked again for what was not answered")
        self._processes.later(self._replace(executor))

    async def _replace(self, ended: RunningExecutor) -> None:
        while not self._processes.is_over:  # also while draining: what was accepted is answered
            await asyncio.sleep(self._processes.pause_s())
            if ended.name not in (*self.current, *self.beside, *self.controls):
                return
            try:
                await self._ready(ended.name, ended.device, ended.models)
                return
            except FlatoutError as error:
                self._say(f"the models can't be loaded again: {error}")

    def _end(self, executor: RunningExecutor) -> None:
        self._processes.end(executor)  # it may write to shared memory until it is gone
        for model in executor.statistics.get("models", ()):
            self._past[model["name"]] = added(self._past.get(model["name"], {}), model)
        executor.statistics = {}
        if self.by_name.get(executor.name) is executor:
            del self.by_name[executor.name]
        if not executor.ready.done():
            executor.ready.set_exception(MachineError("the process of the models was ended before it was ready"))
            executor.ready.exception()  # perhaps nobody waits any more

    async def have_come_back(self, names: Collection[str]) -> None:
        """Executors that ended while the next version was loaded: their successors answer what waits for the old version."""
        until_s = time.monotonic() + _COME_BACK_S
        while time.monotonic() < until_s and not self._processes.is_over:
            found = [self.by_name.get(name) for name in names]
            if all(one is not None and one.is_ready for one in found):
                return
            await asyncio.sleep(_LOOK_S)

    def retire(self, name: str, fronts: Collection[int]) -> None:
        """These fronts were told to ask it no more; it ends when all of them have their answers."""
        old = self.by_name.get(name)
        if old is not None:  # it has not ended meanwhile
            old.retires = True
            old.unretired = set(fronts)
            if not old.unretired or not old.is_ready:
                self._end(old)

    def left(self, name: str, front: int) -> None:
        """The front has all its answers from it, or is gone."""
        old = self.by_name.get(name)
        if old is None or not old.retires:
            return
        old.unretired.discard(front)
        if not old.unretired:
            self._end(old)
            self.forget_versions()

    def forget_versions(self) -> None:
        """Folders of versions that no executor needs now."""
        used = {model.path for model in self.served.values()}
        used |= {one.path for one in (self.beside_model, self.control_model) if one is not None}
        used |= {model.path for executor in self.by_name.values() for model in executor.models}
        for folder in self._folders - used:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders &= used
