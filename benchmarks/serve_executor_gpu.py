"""An executor answers 16,000 images/s of ResNet-50 from shared memory, and every answer is that of its request."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import Report, gpu_or_leave, options, take_turns

import flatout as fo
from flatout.packaging.export import export
from flatout.packaging.package import Package
from flatout.packaging.parity import TOLERANCES
from flatout.serving.arena import Arena
from flatout.serving.asking import Outcome, ServedModel, Status
from flatout.serving.control import ControlLine
from flatout.serving.lane import FrontLane
from flatout.serving.loading import ModelOrder

PRECISION = "bf16"
SECONDS = 3.0


def package_of(place: Path, smoke: bool) -> Package:
    """Random weights after one step: a package is as fast whatever it has learned."""
    draw = np.random.default_rng(0)
    size, rows, model = 224, 320, None
    if smoke:
        size, rows, model = 16, 40, {"convnet": {"channels": [4], "hidden": 8}}
    else:
        import torchvision  # only beside a CUDA build of torch

        model = torchvision.models.resnet50()
    pixels = draw.integers(0, 256, (rows, 3, size, size), dtype=np.uint8)
    labels = draw.integers(0, 10 if smoke else 1000, rows)
    recipe = fo.Recipe(data=fo.data.arrays(pixels, labels, holdout=0.8, normalize="auto"), model=model, batch=8, lr=1e-4,
                       budget="1 steps", evaluate=None, settings={} if smoke else {"precision": PRECISION})  # fmt: skip
    run = fo.run(recipe, runs=place / "runs", cache=None, planning="off")
    return export(run, place / "package").package


class RemoteExecutor:
    """An executor process and a lane to it."""

    def __init__(self, package: Package, device: torch.device, cache: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from flatout.serving.executor import execute; execute({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
            )
        self._control = ControlLine(ours)
        compilers = device.type == "cuda"
        order = ModelOrder(0, "model", package.path).to_json()
        self._control.send({"do": "load", "models": [order], "device": str(device), "threads": 1, "cache": str(cache),
                            "compilers": compilers})  # fmt: skip
        self.ready = self._hear("ready")
        self.loop = asyncio.new_event_loop()
        self.lane = FrontLane(self.loop, Arena(1 << 30))
        mine, other = socket.socketpair()
        with other:
            self._control.send({"do": "attach", "front": "benchmark"}, [self.lane.descriptor, other.fileno()])
        self.lane.attach("device", mine, [0])

    def statistics(self) -> Mapping[str, Any]:
        self._control.send({"do": "statistics"})
        return self._hear("statistics")

    def _hear(self, what: str) -> Mapping[str, Any]:
        while True:
            messages = self._control.receive()
            if messages is None:
                raise SystemExit(f"the executor ended with {self._process.wait()}")
            for message in messages:
                if message.content["say"] == what:
                    return message.content
                if message.content["say"] != "alive":
                    print(dict(message.content), file=sys.stderr, flush=True)
            time.sleep(0.002)

    def close(self) -> None:
        self.lane.close()
        self.loop.close()
        self._control.send({"do": "stop"})
        self._process.wait()


class ImagesAsked:
    """Rooms with one image each, which are asked again and again; every answer is compared with the package's."""

    def __init__(self, executor: RemoteExecutor, package: Package, count: int) -> None:
        self._executor, served = executor, ServedModel("model", "1", 0, package)
        names = [port.name for port in served.inputs]
        samples = package.samples
        self._expected = samples.outputs["probabilities"].float().numpy()
        self._rooms, self._places = [], np.arange(count) % len(samples)
        for place in self._places:
            room = executor.lane.room(served, 1)
            for name in names:
                room.inputs[name][0] = samples.rows[name][place].numpy()
            self._rooms.append(room)
        self._answers = np.zeros((count, self._expected.shape[1]), dtype=np.float32)
        self.latencies_ms: list[float] = []
        self.worst = 0.0

    def rate(self, seconds: float) -> float:
        """Answers a second, with all rooms under way all the time."""
        ended = self._executor.loop.create_future()
        until_s, counted, left = time.monotonic() + seconds, 0, len(self._rooms)
        self.latencies_ms = []

        def ask(number: int) -> None:
            asked_s = time.perf_counter()

            def done(outcome: Outcome) -> None:
                nonlocal counted, left
                if outcome.status is not Status.ANSWERED:
                    raise SystemExit(f"{outcome.status.name}: {outcome.problem}")
                self.latencies_ms.append(1e3 * (time.perf_counter() - asked_s))
                self._answers[number] = outcome.outputs["probabilities"][0]
                counted += 1
                if time.monotonic() < until_s:
                    ask(number)
                else:
                    left -= 1
                    if not left:
                        ended.set_result(None)

            self._executor.lane.ask(self._rooms[number], done)

        began_s = time.monotonic()
        for number in range(len(self._rooms)):
            ask(number)
        self._executor.loop.run_until_complete(ended)
        took_s = time.monotonic() - began_s
        self.worst = max(self.worst, float(np.abs(self._answers - self._expected[self._places]).max()))
        return counted / took_s

    def latency_ms(self, seconds: float) -> float:
        self.rate(seconds)
        return float(np.median(self.latencies_ms))


def main() -> int:
    asked = options(__doc__, repeats=5).parse_args()
    device = gpu_or_leave(asked.smoke)
    report = Report("serve_executor_gpu", str(__doc__), device)
    seconds = 0.2 if asked.smoke else SECONDS
    with tempfile.TemporaryDirectory() as temporary:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        package = package_of(Path(temporary), asked.smoke)
        executor = RemoteExecutor(package, device, Path(temporary) / "cache")
        print(f"ready: {executor.ready['models']}", file=sys.stderr)
        many, one = ImagesAsked(executor, package, 256), ImagesAsked(executor, package, 1)
        rates: dict[str, Callable[[], float]] = {"256 under way, images/s": partial(many.rate, seconds)}
        single: dict[str, Callable[[], float]] = {"one at a time, ms": partial(one.latency_ms, seconds)}
        for name, values in take_turns(rates, asked.repeats, asked.within).items():
            report.arm(name, "images/s", values)
        for name, values in take_turns(single, asked.repeats, asked.within).items():
            report.arm(name, "ms", values)
        worst = max(many.worst, one.worst)
        tolerance = TOLERANCES["fp32" if asked.smoke else PRECISION]
        found = executor.statistics()["models"][0]
        print(f"largest difference {worst:.2g} (tolerance {tolerance}); {found}", file=sys.stderr)
        report.conditions |= {"largest_difference": worst, "executor": found}
        report.arm("largest difference of an answer", "", [worst])
        report.bar("images/s with 256 under way", "256 under way, images/s", 16_000)
        report.bar("ms for one image", "one at a time, ms", 1.5, at_least=False)
        report.bar("every answer is that of its request", "largest difference of an answer", tolerance, at_least=False)
        executor.close()
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
