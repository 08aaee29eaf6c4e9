"""The process that keeps a server running: it starts executors and fronts, replaces those that end or hang, and swaps models.

Everything is one mechanism: an executor with models is started, and when it is ready, all fronts are connected to it. At the
start, after a crash, and for a new version of a model the same happens; see `executors`.
"""

from __future__ import annotations

import asyncio
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
from flatout.base.fork_server import ForkServer
from flatout.base.listening import bound_socket
from flatout.base.tree import to_text
from flatout.machine.host import usable_cores
from flatout.packaging.package import open_package
from flatout.serving.canary.rollout import Rollout, RolloutStatus
from flatout.serving.control import ControlLine, ControlMessage
from flatout.serving.counters import MOST_FRONTS, SharedCounters
from flatout.serving.drift.watch import DriftWatch
from flatout.serving.executors import Executors
from flatout.serving.explaining import serving_doc
from flatout.serving.history import History
from flatout.serving.options import ServeOptions, WantedModel
from flatout.serving.processes import Processes
from flatout.serving.running import RunningExecutor, RunningFront, RunningModel
from flatout.serving.shares import best_row_s, fronts_needed

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_LOOK_S = 0.1
_SLEPT_S = 2.0  # without a look: this process itself was stopped, and others may be alive
_TAKEN_LOOK_S = 0.005
_BEAT_S = 1.0
_EXPLAINED_LOOKS = 10
_BUSY_SHARE, _BUSY_LOOKS = 0.8, 5  # a front more is started if all are this busy this often in a row

Say = Callable[[str], None]
Told = Callable[[str | None], None]


class Supervisor:
    """`kept` is a folder for the packages that are served: those given may be replaced at any time."""

    def __init__(
        self,
        models: Sequence[WantedModel],
        options: ServeOptions,
        template: ForkServer,
        kept: Path,
        say: Say,
        rollout: Rollout | None = None,
    ) -> None:
        self._known = {model.name: model for model in models}
        self._rollout, self._patience_s = rollout, 0.0
        self._drifts: dict[str, DriftWatch] = {}
        if rollout is not None and rollout.status is RolloutStatus.PROMOTED:  # before this server started
            self._known[rollout.options.model] = self._next_version(rollout)
        self._wanted = dict(self._known)
        self._options, self._kept, self._say = options, kept, say
        self._processes = Processes(template)
        self._executors = Executors(options, self._processes, kept, self._connect_to_all, say)
        self._cores = usable_cores()  # within the quota of a container
        self.counters = SharedCounters()
        self._history, self._looks = History(self.counters), 0
        self._listening = bound_socket(options.host, options.port)
        self._fronts: dict[int, RunningFront] = {}
        self._stops = asyncio.Event()
        self._signal = 0
        self._swapping = asyncio.Lock()
        self._warm = False
        self._changes = 0  # of the models

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
            self._processes.close()
            shutil.rmtree(self._kept, ignore_errors=True)
            os._exit(128 + number)
        self._signal = number
        self._say(f"{signal.Signals(number).name}: answering what was accepted, then stopping (again: at once)")
        self._stops.set()

    async def _open(self) -> None:
        executors = self._executors
        executors.serve_from(await executors.started(self._wanted, self._wanted))
        self._watch_drift()
        first = await self._started_front()
        row_s = first.ready.result()
        model_s = max(map(best_row_s, executors.curves()), default=1.0)
        needed = fronts_needed(self._cores, row_s, model_s, len(executors.current), executors.on_cpu)
        wanted = self._options.workers or min(MOST_FRONTS, needed)
        await asyncio.gather(*(self._started_front() for _ in range(wanted - 1)))
        self._listening.listen(4096)
        self._warm = True
        self._broadcast({"do": "status", "status": self.status()})  # the first request may ask where the canary stands
        self._broadcast({"do": "open"})
        if self._rollout is not None and not self._rollout.is_over:
            self._processes.later(self._start_canary(self._rollout))

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
        self._processes.end_all([*self._fronts.values(), *self._executors.by_name.values()])
        self._fronts.clear()
        self._executors.by_name.clear()

    # ---- fronts ----

    async def _started_front(self) -> RunningFront:
        slot = next(number for number in range(MOST_FRONTS) if number not in self._fronts)
        ours, theirs = socket.socketpair()
        asked = {"kind": "front", "slot": slot, "options": self._options.front.to_json()}
        with theirs:
            passed = [theirs.fileno(), self._listening.fileno(), self.counters.descriptor]
            pid = self._processes.start(asked, passed)
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
        for executor in self._executors.by_name.values():
            if executor.is_ready and not executor.retires:
                self._connect(front, executor)
        if self._warm:
            front.line.send({"do": "status", "status": self.status()})
            front.line.send({"do": "open"})
        return front

    def _models_message(self) -> dict[str, Any]:
        running = self._executors.running()
        models = [
            {**vars(one), "path": str(one.path), "takes_files": all(one.number in other.takes_files for other in running)}
            for one in self._executors.served.values()
        ]
        return {"do": "models", "models": models, "change": self._changes, "canary": self._canary_message()}

    def _connect_to_all(self, executor: RunningExecutor) -> None:
        for front in self._fronts.values():
            if front.is_ready:
                self._connect(front, executor)

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
                self._executors.left(content["executor"], front.slot)
            case "took":
                front.took = content["change"]
            case "drained":
                front.drained = True
            case "rows":
                for watch in self._drifts.values():
                    if watch.identity == content["package"]:
                        watch.heard(content["rows"], content["counts"])
            case "label" | "decide":
                self._answer(front, content)
            case "load" | "unload":
                self._processes.later(self._changed(front, content))
            case "event":
                self._say(content["line"])

    def _front_ended(self, front: RunningFront) -> None:
        if self._fronts.get(front.slot) is not front:
            return
        how = self._processes.how_it_ended(front)
        was_ready = front.is_ready
        self._end_front(front)
        if not front.ready.done():
            front.ready.set_exception(MachineError(f"a process for connections {how}"))
        elif was_ready and not self._stops.is_set():
            self._say(f"a process for connections {how}; its connections are lost, and a new one is started")
            self._processes.later(self._replace_front())

    async def _replace_front(self) -> None:
        while not self._stops.is_set():
            await asyncio.sleep(self._processes.pause_s())
            try:
                await self._started_front()
                return
            except FlatoutError as error:
                self._say(f"a process for connections can't be started: {error}")

    def _end_front(self, front: RunningFront) -> None:
        self._processes.end(front)
        self.counters.about(front.slot).take_connections(False)
        if front.arena >= 0:
            os.close(front.arena)
        if self._fronts.get(front.slot) is front:
            del self._fronts[front.slot]
        for executor in list(self._executors.by_name.values()):
            with suppress(OSError):
                executor.line.send({"do": "detach", "front": str(front.slot)})
            self._executors.left(executor.name, front.slot)

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
        if self._rollout is not None and self._rollout.options.model == name and self._executors.beside:
            raise MachineError(f"a canary of {name} is there: promote it or roll it back first (POST /canary)")
        if name not in (self._known if content["say"] == "load" else wanted):
            raise MachineError(f"no model {name!r} to {content['say']}; there are {', '.join(self._known)}")
        if content["say"] == "unload":
            del wanted[name]
        else:
            wanted[name] = self._known[name]
        return wanted

    async def _swapped(self, wanted: dict[str, WantedModel], renewed: Collection[str]) -> None:
        """No request fails: the new executor is ready before fronts use it, and the old one answers what it was asked."""
        executors, before, old_names = self._executors, self._wanted, self._executors.current
        self._wanted = wanted
        try:
            started = await executors.started(wanted, renewed)
        except BaseException:
            self._wanted = before
            executors.forget_versions()
            raise
        await executors.have_come_back(old_names)
        executors.serve_from(started)
        self._watch_drift()
        self._changes += 1
        self._broadcast(self._models_message())
        names = ", ".join(f"{model.name} version {model.version}" for model in executors.served.values()) or "no model"
        self._say(f"serving {names}")
        fronts = [front.slot for front in self._fronts.values() if front.is_ready]
        for name in old_names:
            self._broadcast({"do": "retire", "executor": name})
            executors.retire(name, fronts)
        executors.forget_versions()
        change = self._changes  # the client hears of it when no front answers with the old version
        while any(front.is_ready and front.took < change for front in self._fronts.values()) and not self._processes.is_over:
            await asyncio.sleep(_TAKEN_LOOK_S)

    # ---- drift ----

    def _watch_drift(self) -> None:
        """Of the models as they are served now."""
        drift = self._options.drift
        if drift is None:
            return
        found = {}
        for name, model in self._executors.served.items():
            package = open_package(model.path)
            before, statistics = self._drifts.get(name), package.statistics
            if before is not None and before.identity == package.folder.hash:
                found[name] = before
            elif statistics is None:
                self._say(
                    f"drift of {name} can't be watched: its package has no statistics of the training data; export it again"
                )
            else:
                found[name] = DriftWatch(name, package.folder.hash, statistics, drift, self._say)
        self._drifts = found

    # ---- a canary ----

    def _next_version(self, rollout: Rollout) -> WantedModel:
        name = rollout.options.model
        return WantedModel(name, rollout.options.path, self._known[name].goal)

    async def _start_canary(self, rollout: Rollout) -> None:
        try:
            async with self._swapping:
                await self._executors.start_beside(self._next_version(rollout))
                await self._start_control(rollout)
        except FlatoutError as error:
            if not self._processes.is_over:
                rollout.fail(f"it can't be started: {error}")
            return
        kind = "shadow" if rollout.options.shadow else f"canary with {100 * rollout.share:g}% of the requests"
        control = ", and the stable version as a control with as many" if self._executors.controls else ""
        self._say(f"{rollout.options.path} is there as a {kind} of {rollout.options.model}{control}")
        self._tell_fronts()

    async def _start_control(self, rollout: Rollout) -> None:
        options = rollout.options
        if options.shadow or not options.control:
            return
        try:
            await self._executors.start_control(options.model)
        except FlatoutError as error:
            if not self._processes.is_over:
                self._say(
                    f"degraded: there is no control of {options.model} ({error}): times of the canary are compared with those "
                    "of all other requests, whose load is another one"
                )

    def _model_beside(self, model: RunningModel | None, names: Sequence[str]) -> dict[str, Any] | None:
        """None if it is not there."""
        ready = [self._executors.by_name.get(name) for name in names]
        if model is None or not any(one is not None and one.is_ready for one in ready):
            return None
        takes = all(one is not None and model.number in one.takes_files for one in ready)
        return {**vars(model), "path": str(model.path), "takes_files": takes}

    def _canary_message(self) -> dict[str, Any] | None:
        rollout, executors = self._rollout, self._executors
        model = self._model_beside(executors.beside_model, executors.beside)
        if rollout is None or model is None:
            return None
        self._patience_s = rollout.patience_s()
        control = self._model_beside(executors.control_model, executors.controls)
        return {
            "model": model,
            "control": control,
            "rule": {
                "name": model["name"],
                "version": model["version"],
                "share": rollout.share,
                "secret": rollout.secret.hex(),
                "key": rollout.options.key,
                "patience_s": self._patience_s,
                "shadow": rollout.options.shadow,
                "edges": rollout.edges,
            },
        }

    def _tell_fronts(self) -> None:
        self._changes += 1
        self._broadcast(self._models_message())

    def _look_at_canary(self) -> None:
        rollout = self._rollout
        if rollout is None:
            return
        if rollout.look(self.counters.arms_summed(), self._executors.beside_ends):
            self._after_verdict(rollout)
        rollout.save(_BEAT_S)

    def _after_verdict(self, rollout: Rollout) -> None:
        if rollout.is_over:
            self._end_control()
        self._tell_fronts()
        self._broadcast({"do": "status", "status": self.status()})
        if rollout.status is RolloutStatus.ROLLED_BACK:
            self._end_canary()
        elif rollout.status is RolloutStatus.PROMOTED:
            self._processes.later(self._take_over(rollout))

    def _end_control(self) -> None:
        """Nothing is compared any more."""
        names = self._executors.controls
        fronts = [front.slot for front in self._fronts.values() if front.is_ready]
        for name in names:
            self._broadcast({"do": "retire", "executor": name})
        self._executors.end_control(fronts)

    def _end_canary(self) -> None:
        names = self._executors.beside
        fronts = [front.slot for front in self._fronts.values() if front.is_ready]
        for name in names:
            self._broadcast({"do": "retire", "executor": name})
        self._executors.end_beside(fronts)
        self._tell_fronts()

    async def _take_over(self, rollout: Rollout) -> None:
        """When the old version need not be warm any longer, the new one is served as any other model."""
        await asyncio.sleep(rollout.options.keep_s)
        if rollout.status is not RolloutStatus.PROMOTED or self._stops.is_set():
            return
        try:
            async with self._swapping:
                name = rollout.options.model
                self._known[name] = self._next_version(rollout)
                await self._swapped({**self._wanted, name: self._known[name]}, [name])
                self._end_canary()
        except FlatoutError as error:
            self._say(f"the promoted version stays a canary with all requests: {error}")

    def _answer(self, front: RunningFront, content: Mapping[str, Any]) -> None:
        """What a client asks about the canary, by way of a front."""
        rollout, found = self._rollout, []
        if rollout is None:
            found = [{"status": 404, "why": "this server has no canary and no shadow: start it with --canary or --shadow"}]
        elif content["say"] == "label":
            found = [vars(rollout.label(one.get("id"), one.get("label"))) for one in content["labels"]]
        else:
            try:
                if not self._executors.beside:
                    raise UsageError(f"the canary of {rollout.options.model} is not there any more: it was {rollout.status}")
                rollout.decide(RolloutStatus(content["status"]))
                self._after_verdict(rollout)
                found = [{"status": 200, "why": ""}]
            except UsageError as error:
                found = [{"status": 409, "why": str(error)}]
        with suppress(OSError):
            front.line.send({"do": "reply", "ask": content["ask"], "problem": None, "found": found})

    # ---- watching ----

    async def _watch(self) -> None:
        beat_s, looked_s = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            if now_s - looked_s > _SLEPT_S:
                for executor in self._executors.by_name.values():
                    executor.alive_s = now_s
                for front in self._fronts.values():
                    front.alive_s = now_s
            looked_s = now_s
            if not self._processes.can_start():
                raise MachineError("the process that starts the others was ended; start the server again")
            self._end_hanging(now_s)
            self._look_at_canary()
            if now_s >= beat_s:
                beat_s = now_s + _BEAT_S
                for executor in self._executors.by_name.values():
                    if executor.is_ready:
                        with suppress(OSError):
                            executor.line.send({"do": "statistics"})
                status = self.status()
                self._broadcast({"do": "status", "status": status})
                self._add_front_if_busy()
                self._revise_patience()
                for watch in self._drifts.values():
                    watch.look()
                if self._options.explains and self._warm:
                    self._explain(status)

    def _revise_patience(self) -> None:
        rollout = self._rollout
        if rollout is None or not self._executors.beside or not self._patience_s:
            return
        now_s = rollout.patience_s()
        if not 0.5 < now_s / self._patience_s < 2.0:
            self._tell_fronts()

    def _explain(self, status: Mapping[str, Any]) -> None:
        self._history.look(self._executors.places, status)
        self._looks += 1
        if self._looks % _EXPLAINED_LOOKS == 0:
            self._say(to_text(serving_doc(self._history.last(_EXPLAINED_LOOKS * _BEAT_S))))

    def _end_hanging(self, now_s: float) -> None:
        for executor in list(self._executors.by_name.values()):
            if executor.is_ready and now_s - executor.alive_s > self._options.hang_s:
                self._say(f"the process of the models has not answered for {self._options.hang_s:g} s and is ended")
                self._processes.kill(executor)
                executor.alive_s = now_s
        for front in list(self._fronts.values()):
            if front.is_ready and now_s - front.alive_s > self._options.hang_s:
                self._say(f"a process for connections has not answered for {self._options.hang_s:g} s and is ended")
                self._processes.kill(front)
                front.alive_s = now_s

    def _add_front_if_busy(self) -> None:
        if self._options.workers is not None or not self._warm or self._stops.is_set():
            return
        busy = [front.busy_looks >= _BUSY_LOOKS for front in self._fronts.values()]
        if all(busy) and len(busy) < min(MOST_FRONTS, self._cores - 1):
            for front in self._fronts.values():
                front.busy_looks = 0
            self._processes.later(self._replace_front())

    def status(self) -> dict[str, Any]:
        """What fronts show on the page, in /metrics and in /explain: sums of all executors, by model."""
        executors = self._executors
        return {
            "device": ", ".join(executors.devices),
            "executors": len(executors.current),
            "fronts": len(self._fronts),
            "executor_cpu_s": sum(one.statistics.get("cpu_s", 0.0) for one in executors.running()),
            "cores": self._cores,
            "models": executors.sums(),
            "drift": {name: watch.summary() for name, watch in self._drifts.items()},
            "canary": None if self._rollout is None else self._rollout.summary(),
            "goals": {one.name: one.goal for one in executors.served.values()},
        }

    def _broadcast(self, content: Mapping[str, Any]) -> None:
        for front in self._fronts.values():
            with suppress(OSError):
                front.line.send(content)
