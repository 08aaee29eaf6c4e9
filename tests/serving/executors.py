"""Executors to test with, in processes or threads of their own, and requests to them through a real lane."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.base.latency_goal import LatencyGoal
from flatout.packaging.package import Package, open_package
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.serving.asking import Outcome, ServedModel, Status
from flatout.serving.control import ControlLine
from flatout.serving.executor import Executor
from flatout.serving.lane import FrontLane
from flatout.serving.loading import ModelOrder
from flatout.serving.records import open_sizes

sys.path.append(str(Path(__file__).parent.parent / "packaging"))  # where small runs of every kind are

QUICK = "from flatout.packaging import package; package.SIZES = (1, 2)"
LIMIT_S = 60.0


class ControlledExecutor:
    """The supervisor's end of an executor."""

    def __init__(self, control: socket.socket) -> None:
        self.control = ControlLine(control)
        self.heard: list[Mapping[str, Any]] = []

    def hear(self, what: str, limit_s: float = LIMIT_S) -> Mapping[str, Any]:
        """The next message of this kind; those before it go to `heard`. TimeoutError if there is none in time."""
        until_s = time.monotonic() + limit_s
        while True:
            for place, content in enumerate(self.heard):
                if content["say"] == what:
                    return self.heard.pop(place)
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([self.control], [], [], left_s)[0]:
                raise TimeoutError(f"no {what!r} from the executor")
            messages = self.control.receive()
            if messages is None:
                raise EOFError(f"the executor ended before it said {what!r}; it said {self.heard}")
            self.heard.extend(message.content for message in messages)

    def load(self, paths: Mapping[int, Path], cache: Path | None, goal: str | None = None) -> Mapping[str, Any]:
        parsed = None if goal is None else LatencyGoal.parse(goal)
        orders = [ModelOrder(number, f"model{number}", path, parsed).to_json() for number, path in paths.items()]
        self.control.send(
            {"do": "load", "models": orders, "device": "cpu", "threads": 1, "cache": None if cache is None else str(cache)}
        )
        return self.hear("ready")

    def attach(self, lane: FrontLane, models: list[int], executor: str = "cpu", front: str = "front") -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.control.send({"do": "attach", "front": front}, [lane.descriptor, theirs.fileno()])
        lane.attach(executor, ours, models)

    def statistics(self) -> dict[int, Mapping[str, Any]]:
        self.control.send({"do": "statistics"})
        return {model["number"]: model for model in self.hear("statistics")["models"]}


class ExecutorProcess(ControlledExecutor):
    """`code` is run before the executor, to plant faults."""

    def __init__(self, code: str = QUICK) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            program = f"{code}\nfrom flatout.serving.executor import execute\nexecute({number})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", program], pass_fds=[number], env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        super().__init__(ours)

    def __enter__(self) -> ExecutorProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()


class ExecutorThread(ControlledExecutor):
    """The same loop in a thread, so that a test can plant faults in the model that it runs."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)

    def _run(self, control: socket.socket) -> None:
        try:
            with control:
                Executor(ControlLine(control)).run()
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> ExecutorThread:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.control.close()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


class Asked:
    """A served package, rows for it, and the answer that each row must get."""

    def __init__(self, number: int, path: Path, rows: Mapping[str, torch.Tensor] | None = None) -> None:
        self.package: Package = open_package(path)
        self.model = ServedModel(f"model{number}", "1", number, self.package)
        names = [port.name for port in self.model.inputs]
        given = {name: (rows or self.package.samples.rows)[name] for name in names}
        self.rows = {name: column.numpy() for name, column in given.items()}
        self.count = len(next(iter(self.rows.values())))
        made = EagerRuntime.load(self.package.parts(torch.device("cpu"))).run(given)
        self.expected = {name: column.numpy() for name, column in made.items()}

    def sizes(self) -> tuple[int, ...]:
        return open_sizes(self.model.inputs, self.rows)

    def ask(self, lane: FrontLane, places: np.ndarray[Any, Any], done: Callable[[Outcome, bool], None], **more: Any) -> None:
        """`done` gets the outcome and whether every answer is the right one."""
        room = lane.room(self.model, len(places), self.sizes())
        for name, column in room.inputs.items():
            column[...] = self.rows[name][places]

        def finish(outcome: Outcome) -> None:
            right = outcome.status is Status.ANSWERED and all(
                outcome.outputs[name].shape == wanted[places].shape
                and np.allclose(outcome.outputs[name], wanted[places], rtol=1e-5, atol=1e-5)
                for name, wanted in self.expected.items()
            )
            room.release()
            done(outcome, right)

        lane.ask(room, finish, **more)

    async def answer(self, lane: FrontLane, places: np.ndarray[Any, Any], **more: Any) -> tuple[Outcome, bool]:
        future: asyncio.Future[tuple[Outcome, bool]] = asyncio.get_running_loop().create_future()
        self.ask(lane, places, lambda outcome, right: future.set_result((outcome, right)), **more)
        return await asyncio.wait_for(future, LIMIT_S)
