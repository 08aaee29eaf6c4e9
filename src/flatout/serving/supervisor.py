"""The process that keeps a server running: it starts executors and fronts, replaces those that end or hang, and swaps models.

Everything is one mechanism: an executor with models is started, and when it is ready, all fronts are connected to it. At the
start, after a crash, and for a new version of a model the same happens. A replacement after a crash has the name and the
models of its predecessor, so fronts ask it again for what was not answered. A new version comes with a new executor; the old
one ends when its last request is answered. With several devices, or several executors on a CPU, each runs all models.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, MachineError, UsageError
from flatout.base.exits import exit_words
from flatout.base.fork_server import ForkServer, ForkServerGone
from flatout.base.tree import to_text
from flatout.serving.control import ControlLine, ControlMessage
from flatout.serving.counters import MOST_FRONTS, MOST_MODELS, SharedCounters
from flatout.serving.executor_sums import added
from flatout.serving.explaining import serving_doc
from flatout.serving.goal import LatencyGoal
from flatout.serving.history import History
from flatout.serving.kept_packages import keep_package
from flatout.serving.loading import ModelOrder
from flatout.serving.options import ServeOptions, WantedModel
from flatout.serving.places import bound_socket, devices_named
from flatout.serving.running import RunningExecutor, RunningFront, RunningModel
from flatout.serving.shares import best_row_s, fronts_needed

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_LOOK_S = 0.1
_SLEPT_S = 2.0  # without a look: this process itself was stopped, and others may be alive
_TAKEN_LOOK_S = 0.005
_COME_BACK_S = 10.0
_END_S = 2.0
_BEAT_S = 1.0
_EXPLAINED_LOOKS = 10
_SOON_S = 1.0  # between two tries to start what ends at once
_BUSY_SHARE, _BUSY_LOOKS = 0.8, 5  # a front more is started if all are this busy this often in a row
_STARTS_AT_ONCE = 5  # ends within a minute, after which starting again waits longer

Say = Callable[[str], None]
Told = Callable[[str | None], None]


class Supervisor:
    """`kept` is a folder for the packages that are served: those given may be replaced at any time."""

    def __init__(
        self, models: Sequence[WantedModel], options: ServeOptions, template: ForkServer, kept: Path, say: Say
    ) -> None:
        self._known = {model.name: model for model in models}
        self._wanted = dict(self._known)
        self._options, self._template, self._kept, self._say = options, template, kept, say
        self._devices = devices_named(options.device)
        self._cores = len(os.sched_getaffinity(0))
        self._each = options.executors  # executors for each device
        self.counters = SharedCounters()
        self._history, self._looks = History(self.counters), 0
        self._listening = bound_socket(options.host, options.port)
        self._executors: dict[str, RunningExecutor] = {}
        self._current: tuple[str, ...] = ()  # executors that get requests
        self._fronts: dict[int, RunningFront] = {}
        self._numbers = itertools.count(1)
        self._generations = itertools.count(1)
        self._versions: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._past: dict[str, dict[str, Any]] = {}  # sums of executors that have ended, by model
        self._ends: list[float] = []
        self._stops = asyncio.Event()
        self._signal = 0
        self._swapping = asyncio.Lock()
        self._replacing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._warm = self._is_over = False
        self._changes = 0  # of the models
        self._served: dict[str, RunningModel] = {}
        self._folders: set[Path] = set()  # of all versions that are kept

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listening.getsockname()[:2]
        return host, port

    # ---- the whole life ----

    async def run(self, opened: Callable[[], None] = lambda: None) -> int:
        """Until a signal; returns the exit code. `opened` is called when the port takes connections."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._asked_to_stop, number)
        watching = asyncio.ensure_future(self._watch())
        try:
            starting = asyncio.ensure_future(self._open())
            stopping = asyncio.ensure_future(self._stops.wait())
            await asyncio.wait({starting, stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
            else:
                starting.result()
                opened()
                await asyncio.wait({stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
            failure = watching.exception() if watching.done() else None
            await self._drain()
            if failure is not None:
                raise failure
        finally:
            watching.cancel()
            self._listening.close()
            self._end_all()
        return 128 + self._signal if self._signal else 0

    def _asked_to_stop(self, number: int) -> None:
        if self._signal:  # the second time: at once
            self._say("stopping at once")
            self._end_all()
            self._template.close()
            shutil.rmtree(self._kept, ignore_errors=True)
            os._exit(128 + number)
        self._signal = number
        self._say(f"{signal.Signals(number).name}: answering what was accepted, then stopping (again: at once)")
        self._stops.set()

    async def _open(self) -> None:
        self._serve_from(await self._started_executors(self._wanted))
        first = await self._started_front()
        row_s = first.ready.result()
        model_s = max(map(best_row_s, self._curves()), default=1.0)
        needed = fronts_needed(self._cores, row_s, model_s, len(self._current), self._on_cpu)
        wanted = self._options.workers or min(MOST_FRONTS, needed)
        await asyncio.gather(*(self._started_front() for _ in range(wanted - 1)))
        self._listening.listen(4096)
        self._warm = True
        self._broadcast({"do": "open"})

    async def _drain(self) -> None:
        """Fronts stop taking connections, answer what they have read, and close."""
        self._broadcast({"do": "drain"})
        self._listening.close()  # as fronts do: when the last has, the port is closed
        until_s = time.monotonic() + self._options.drain_s
        while any(not front.drained for front in self._fronts.values()) and time.monotonic() < until_s:
            await asyncio.sleep(0.02)
        left = sum(not front.drained for front in self._fronts.values())
        if left:
            self._say(f"{left} of {len(self._fronts)} processes still had requests after {self._options.drain_s:g} s")

    def _end_all(self) -> None:
        self._is_over = True
        running: list[RunningFront | RunningExecutor] = [*self._fronts.values(), *self._executors.values()]
        for one in running:
            if not one.has_ended:
                self._template.signal(one.pid, signal.SIGKILL)
        for one in running:
            self._kill(one)
            self._forget_line(one.line)
        self._fronts, self._executors = {}, {}

    # ---- executors ----

    @property
    def _on_cpu(self) -> bool:
        return self._devices == ("cpu",)

    def _threads(self) -> int:
        """On a CPU one core is left to the fronts, if there are more than two: a model on one of two is 1.4 times as slow."""
        return max(1, max(2, self._cores - 1) // self._each) if self._on_cpu else 1

    def _running(self) -> list[RunningExecutor]:
        """Those that get requests; one that has just ended is not among them."""
        return [self._executors[name] for name in self._current if name in self._executors]

    def _curves(self) -> list[Any]:
        """Of all models, as the executors have measured them."""
        return [model["curve"] for executor in self._running() for model in executor.ready.result()]

    async def _started_executors(self, renewed: Collection[str]) -> list[RunningExecutor]:
        """Ready, each with all wanted models. Those of `renewed` are read again from their folders; others stay as they are."""
        models = []
        for model in self._wanted.values():
            before = None if model.name in renewed else self._served.get(model.name)
            models.append(before or await self._versioned(model))
        return await self._ready_executors(tuple(models), self._each)

    async def _ready_executors(self, models: tuple[RunningModel, ...], each: int) -> list[RunningExecutor]:
        """So many on each device, or none: if one can't be started, the others are ended. The first is ready before the others
        begin: what it compiles and measures is kept for them."""
        generation = next(self._generations)
        wanted = [(f"{device}/{generation}/{place}", device) for device in self._devices for place in range(each)]
        started = [await self._ready_executor(*wanted[0], models)]
        tries = (self._ready_executor(name, device, models) for name, device in wanted[1:])
        ended = await asyncio.gather(*tries, return_exceptions=True)
        started += [one for one in ended if isinstance(one, RunningExecutor)]
        for problem in ended:
            if isinstance(problem, BaseException):
                for executor in started:
                    self._end_executor(executor)
                raise problem
        return started

    def _serve_from(self, executors: Sequence[RunningExecutor]) -> None:
        self._current = tuple(executor.name for executor in executors)
        self._served = {model.name: model for model in executors[0].models}
        self._versions |= {model.name: int(model.version) for model in executors[0].models}

    async def _versioned(self, wanted: WantedModel) -> RunningModel:
        version, number = self._versions.get(wanted.name, 0) + 1, next(self._numbers)
        if wanted.name not in self._places and len(self._places) >= MOST_MODELS - 1:
            raise MachineError(f"a server has at most {MOST_MODELS - 1} names of models")
        place = self._places.setdefault(wanted.name, len(self._places) + 1)
        goal = wanted.goal or self._options.goal
        path = self._kept / f"{place}-{version}-{number}"
        self._folders.add(path)
        await asyncio.to_thread(keep_package, wanted.path, path)  # it reads all of it
        return RunningModel(wanted.name, str(version), number, path, goal, place)

    async def _ready_executor(self, name: str, device: str, models: tuple[RunningModel, ...]) -> RunningExecutor:
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._template.start({"kind": "executor"}, [theirs.fileno()])
        loop = asyncio.get_running_loop()
        executor = RunningExecutor(name, device, models, pid, ControlLine(ours), loop.create_future(), time.monotonic())
        self._executors[name] = executor
        loop.add_reader(ours.fileno(), self._hear_executor, executor)
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
            self._end_executor(executor)
            raise
        if executor.has_ended:
            raise MachineError("the process of the models ended when it had loaded them")
        executor.takes_files = frozenset(one["number"] for one in loaded if one["takes_files"])
        executor.is_ready = True
        for front in self._fronts.values():
            if front.is_ready:
                self._connect(front, executor)
        return executor

    def _hear_executor(self, executor: RunningExecutor) -> None:
        messages = executor.line.receive()
        if messages is None:
            asyncio.get_running_loop().remove_reader(executor.line.fileno())
            self._executor_ended(executor)
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

    def _executor_ended(self, executor: RunningExecutor) -> None:
        if self._executors.get(executor.name) is not executor:
            return
        how = self._how_it_ended(executor)
        if not executor.ready.done():
            executor.ready.set_exception(MachineError(f"the process of the models {how}"))
            return
        if not executor.is_ready:
            return
        self._end_executor(executor)
        if executor.retires or self._is_over:
            return
        self._say(f"the process of the models {how}; a new one is started, and asked again for what was not answered")
        self._later(self._replace_executor(executor))

    async def _replace_executor(self, ended: RunningExecutor) -> None:
        while not self._is_over:  # also while draining: what was accepted is answered
            await asyncio.sleep(self._pause_s())
            if ended.name not in self._current:
                return
            try:
                await self._ready_executor(ended.name, ended.device, ended.models)
                return
            except FlatoutError as error:
                self._say(f"the models can't be loaded again: {error}")

    def _pause_s(self) -> float:
        """Before something that ended is started again: nothing at first, longer if it ends again and again."""
        now_s = time.monotonic()
        self._ends = [*(at_s for at_s in self._ends if now_s - at_s < 60), now_s]
        return 0.0 if len(self._ends) <= _STARTS_AT_ONCE else _SOON_S * min(30, len(self._ends) - _STARTS_AT_ONCE)

    def _end_executor(self, executor: RunningExecutor) -> None:
        self._kill(executor)  # it may write to shared memory until it is gone
        self._forget_line(executor.line)
        for model in executor.statistics.get("models", ()):
            self._past[model["name"]] = added(self._past.get(model["name"], {}), model)
        executor.statistics = {}
        if self._executors.get(executor.name) is executor:
            del self._executors[executor.name]
        if not executor.ready.done():
            executor.ready.set_exception(MachineError("the process of the models was ended before it was ready"))
            executor.ready.exception()  # perhaps nobody waits any more

    def _forget_versions(self) -> None:
        """Folders of versions that no executor needs now."""
        used = {model.path for model in self._served.values()}
        used |= {model.path for executor in self._executors.values() for model in executor.models}
        for folder in self._folders - used:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders &= used

    # ---- fronts ----

    async def _started_front(self) -> RunningFront:
        slot = next(number for number in range(MOST_FRONTS) if number not in self._fronts)
        ours, theirs = socket.socketpair()
        asked = {"kind": "front", "slot": slot, "options": self._options.front.to_json()}
        with theirs:
            passed = [theirs.fileno(), self._listening.fileno(), self.counters.descriptor]
            pid = self._template.start(asked, passed)
        loop = asyncio.get_running_loop()
        front = RunningFront(slot, pid, ControlLine(ours), loop.create_future(), time.monotonic())
        self._fronts[slot] = front
        loop.add_reader(ours.fileno(), self._hear_front, front)
        front.line.send(self._models_message())
        try:
            await front.ready
        except BaseException:
            self._end_front(front)
            raise
        front.is_ready = True
        for executor in self._executors.values():
            if executor.is_ready and not executor.retires:
                self._connect(front, executor)
        if self._warm:
            front.line.send({"do": "open"})
        return front

    def _models_message(self) -> dict[str, Any]:
        running = self._running()
        models = [
            {**vars(one), "path": str(one.path), "takes_files": all(one.number in other.takes_files for other in running)}
            for one in self._served.values()
        ]
        return {"do": "models", "models": models, "change": self._changes}

    def _connect(self, front: RunningFront, executor: RunningExecutor) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, suppress(OSError):  # one that ended meanwhile is replaced
            executor.line.send({"do": "attach", "front": str(front.slot)}, [front.arena, theirs.fileno()])
            numbers = [model.number for model in executor.models]
            front.line.send({"do": "attach", "executor": executor.name, "models": numbers}, [ours.fileno()])

    def _hear_front(self, front: RunningFront) -> None:
        messages = front.line.receive()
        if messages is None:
            asyncio.get_running_loop().remove_reader(front.line.fileno())
            self._front_ended(front)
            return
        front.alive_s = time.monotonic()
        for message in messages:
            self._obey_front(front, message)

    def _obey_front(self, front: RunningFront, message: ControlMessage) -> None:
        content = message.content
        match content["say"]:
            case "ready":
                (front.arena,) = message.descriptors
                front.ready.set_result(content["row_s"])
            case "failed" if not front.ready.done():
                kind = UsageError if content["usage"] else MachineError
                front.ready.set_exception(kind(content["problem"]))
            case "alive":
                front.busy_looks = front.busy_looks + 1 if content["busy"] > _BUSY_SHARE else 0
            case "retired":
                self._retired(content["executor"], front.slot)
            case "took":
                front.took = content["change"]
            case "drained":
                front.drained = True
            case "load" | "unload":
                self._later(self._changed(front, content))
            case "event":
                self._say(content["line"])

    def _front_ended(self, front: RunningFront) -> None:
        if self._fronts.get(front.slot) is not front:
            return
        how = self._how_it_ended(front)
        was_ready = front.is_ready
        self._end_front(front)
        if not front.ready.done():
            front.ready.set_exception(MachineError(f"a process for connections {how}"))
        elif was_ready and not self._stops.is_set():
            self._say(f"a process for connections {how}; its connections are lost, and a new one is started")
            self._later(self._replace_front())

    async def _replace_front(self) -> None:
        while not self._stops.is_set():
            await asyncio.sleep(self._pause_s())
            try:
                await self._started_front()
                return
            except FlatoutError as error:
                self._say(f"a process for connections can't be started: {error}")

    def _end_front(self, front: RunningFront) -> None:
        self._kill(front)
        self._forget_line(front.line)
        self.counters.about(front.slot).take_connections(False)
        if front.arena >= 0:
            os.close(front.arena)
        if self._fronts.get(front.slot) is front:
            del self._fronts[front.slot]
        for executor in list(self._executors.values()):
            with suppress(OSError):
                executor.line.send({"do": "detach", "front": str(front.slot)})
            self._retired(executor.name, front.slot)

    # ---- new versions ----

    async def _changed(self, front: RunningFront, content: Mapping[str, Any]) -> None:
        problem = None
        try:
            async with self._swapping:
                wanted = self._with_change(content)
                await self._swapped(wanted, [content["name"]])
        except FlatoutError as error:
            problem = str(error)
        except Exception as error:  # whatever it was, the client hears of it
            problem = f"{type(error).__name__}: {error}"
        with suppress(OSError):
            front.line.send({"do": "reply", "ask": content["ask"], "problem": problem})

    def _with_change(self, content: Mapping[str, Any]) -> dict[str, WantedModel]:
        name, wanted = content["name"], dict(self._wanted)
        if name not in (self._known if content["say"] == "load" else wanted):
            raise MachineError(f"no model {name!r} to {content['say']}; there are {', '.join(self._known)}")
        if content["say"] == "unload":
            del wanted[name]
        else:
            wanted[name] = self._known[name]
        return wanted

    async def _swapped(self, wanted: dict[str, WantedModel], renewed: Collection[str]) -> None:
        """No request fails: the new executor is ready before fronts use it, and the old one answers what it was asked."""
        before, old_names = self._wanted, self._current
        self._wanted = wanted
        try:
            executors = await self._started_executors(renewed)
        except BaseException:
            self._wanted = before
            self._forget_versions()
            raise
        await self._have_come_back(old_names)
        self._serve_from(executors)
        self._changes += 1
        self._broadcast(self._models_message())
        names = ", ".join(f"{model.name} version {model.version}" for model in self._served.values()) or "no model"
        self._say(f"serving {names}")
        for name in old_names:
            self._retire(name)
        self._forget_versions()
        change = self._changes  # the client hears of it when no front answers with the old version
        while any(front.is_ready and front.took < change for front in self._fronts.values()) and not self._is_over:
            await asyncio.sleep(_TAKEN_LOOK_S)

    def _retire(self, name: str) -> None:
        self._broadcast({"do": "retire", "executor": name})
        old = self._executors.get(name)
        if old is not None:  # it has not ended meanwhile
            old.retires = True
            old.unretired = {front.slot for front in self._fronts.values() if front.is_ready}
            if not old.unretired or not old.is_ready:
                self._end_retired(old)

    async def _have_come_back(self, names: Collection[str]) -> None:
        """Executors that ended while the next version was loaded: their successors answer what waits for the old version."""
        until_s = time.monotonic() + _COME_BACK_S
        while time.monotonic() < until_s and not self._is_over:
            found = [self._executors.get(name) for name in names]
            if all(one is not None and one.is_ready for one in found):
                return
            await asyncio.sleep(_TAKEN_LOOK_S)

    def _retired(self, executor: str, slot: int) -> None:
        old = self._executors.get(executor)
        if old is None or not old.retires:
            return
        old.unretired.discard(slot)
        if not old.unretired:
            self._end_retired(old)

    def _end_retired(self, old: RunningExecutor) -> None:
        self._end_executor(old)
        self._forget_versions()

    # ---- watching ----

    async def _watch(self) -> None:
        beat_s, looked_s = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            if now_s - looked_s > _SLEPT_S:
                for executor in self._executors.values():
                    executor.alive_s = now_s
                for front in self._fronts.values():
                    front.alive_s = now_s
            looked_s = now_s
            if not self._template.is_alive():
                raise MachineError("the process that starts the others was ended; start the server again")
            self._end_hanging(now_s)
            if now_s >= beat_s:
                beat_s = now_s + _BEAT_S
                for executor in self._executors.values():
                    if executor.is_ready:
                        with suppress(OSError):
                            executor.line.send({"do": "statistics"})
                status = self.status()
                self._broadcast({"do": "status", "status": status})
                self._add_front_if_busy()
                if self._options.explains and self._warm:
                    self._explain(status)

    def _explain(self, status: Mapping[str, Any]) -> None:
        self._history.look(self._places, status)
        self._looks += 1
        if self._looks % _EXPLAINED_LOOKS == 0:
            self._say(to_text(serving_doc(self._history.last(_EXPLAINED_LOOKS * _BEAT_S))))

    def _end_hanging(self, now_s: float) -> None:
        for executor in list(self._executors.values()):
            if executor.is_ready and now_s - executor.alive_s > self._options.hang_s:
                self._say(f"the process of the models has not answered for {self._options.hang_s:g} s and is ended")
                self._template.signal(executor.pid, signal.SIGKILL)
                executor.alive_s = now_s
        for front in list(self._fronts.values()):
            if front.is_ready and now_s - front.alive_s > self._options.hang_s:
                self._say(f"a process for connections has not answered for {self._options.hang_s:g} s and is ended")
                self._template.signal(front.pid, signal.SIGKILL)
                front.alive_s = now_s

    def _add_front_if_busy(self) -> None:
        if self._options.workers is not None or not self._warm or self._stops.is_set():
            return
        busy = [front.busy_looks >= _BUSY_LOOKS for front in self._fronts.values()]
        if all(busy) and len(busy) < min(MOST_FRONTS, self._cores - 1):
            for front in self._fronts.values():
                front.busy_looks = 0
            self._later(self._replace_front())

    def status(self) -> dict[str, Any]:
        """What fronts show on the page, in /metrics and in /explain: sums of all executors, by model."""
        models: dict[str, dict[str, Any]] = {name: dict(sums) for name, sums in self._past.items()}
        for executor in self._executors.values():
            for model in executor.statistics.get("models", ()):
                models[model["name"]] = added(models.get(model["name"], {}), model)
        return {
            "device": ", ".join(self._devices),
            "executors": len(self._current),
            "fronts": len(self._fronts),
            "executor_cpu_s": sum(one.statistics.get("cpu_s", 0.0) for one in self._running()),
            "cores": self._cores,
            "models": models,
            "goals": {one.name: one.goal for one in self._served.values()},
        }

    def _how_it_ended(self, one: RunningExecutor | RunningFront) -> str:
        code = None
        with suppress(ForkServerGone):
            code = self._template.wait_for_end(one.pid, _END_S)
        one.has_ended = code is not None
        return exit_words(code) if code is not None else "closed its connection"

    def _kill(self, one: RunningExecutor | RunningFront) -> None:
        if not one.has_ended:
            self._template.signal(one.pid, signal.SIGKILL)
            with suppress(ForkServerGone):
                one.has_ended = self._template.wait_for_end(one.pid, _END_S) is not None

    def _broadcast(self, content: Mapping[str, Any]) -> None:
        for front in self._fronts.values():
            with suppress(OSError):
                front.line.send(content)

    def _forget_line(self, line: ControlLine) -> None:
        if line.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(line.fileno())
            line.close()

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
