"""A training is not slower next to the live page of 50 runs that log 10 times a second each: within 1%, in paired turns.

The 50 runs are written by a process that works in all turns alike. In one of them a watcher runs with a viewer that takes all
that it sends; in another one the viewer is Chromium on the same machine, which draws the page: that has no bar.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from evidence import Report, options, take_turns
from torch import nn

import flatout as fo
from flatout.base.sealed import sealed
from flatout.recipe.load import recipe_from
from flatout.store.run_folder import RunFolder

RUNS, EVENTS_PER_S = 50, 10
WRITE = "--write"
WAIT_S = 120


def write_forever(folder: Path) -> None:
    """Appends to the logs of all runs in the folder, as if each of them trained."""
    folders = [RunFolder(path) for path in sorted(folder.iterdir())]
    locks = [one.lock() for one in folders]
    for lock in locks:
        lock.take()
    logs = [os.open(one.events_path, os.O_WRONLY | os.O_APPEND) for one in folders]
    began_s, step = time.monotonic(), 100
    while os.getppid() != 1:
        step += 1
        fields = {
            "kind": "step", "t": step / EVENTS_PER_S, "at": time.time(), "step": step, "samples": 64 * step,
            "epoch": step / 100, "done": 0.5, "loss": 1 / step, "lr": 1e-3, "grad_norm": 1.5, "samples_per_s": 12345.6,
            "tokens_per_s": None, "memory_bytes": 381571072, "power_w": None, "skipped": 0, "elapsed_s": step / EVENTS_PER_S,
        }  # fmt: skip
        for log in logs:
            os.write(log, sealed(fields) + b"\n")
        time.sleep(max(0.0, began_s + (step - 100) / EVENTS_PER_S - time.monotonic()))


class Training:
    """Steps of a small convolutional network on all cores."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 16 * 16, 10),
        )  # fmt: skip
        self._optimizer = torch.optim.AdamW(self._model.parameters(), fused=True)
        self._x, self._y = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))

    def rate(self, seconds: float) -> float:
        """Steps per second."""
        steps, began_s = 0, time.perf_counter()
        while (spent_s := time.perf_counter() - began_s) < seconds:
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(self._x), self._y).backward()
            self._optimizer.step()
            steps += 1
        return steps / spent_s


class Watcher:
    """A watcher of a folder, and what it took: seconds of CPU per second, bytes of memory, bytes sent to a viewer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.cpu_share: list[float] = []
        self.memory: list[float] = []
        self.sent_per_s: list[float] = []

    @contextmanager
    def running(self, viewed_by: Callable[[str], Iterator[None]]) -> Iterator[None]:
        command = [sys.executable, "-m", "flatout", "watch", str(self._folder), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().rpartition(" ")[2].strip()
                with contextmanager(viewed_by)(url):
                    about = psutil.Process(process.pid)
                    before, began_s = about.cpu_times(), time.monotonic()
                    yield
                    after, spent_s = about.cpu_times(), time.monotonic() - began_s
                    self.cpu_share.append((after.user + after.system - before.user - before.system) / spent_s)
                    self.memory.append(float(about.memory_info().rss))
            finally:
                process.send_signal(signal.SIGINT)

    def read_all(self, url: str) -> Iterator[None]:
        """A viewer that takes everything and draws nothing."""
        port = int(url.split(":")[2].strip("/"))
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        asked.request("GET", "/events")
        answer = asked.getresponse()
        while answer.readline() != b"event: points\n":
            pass
        taken = [0]

        def take() -> None:
            while line := answer.readline():
                taken[0] += len(line)

        threading.Thread(target=take, daemon=True).start()
        began_s = time.monotonic()
        yield
        self.sent_per_s.append(taken[0] / (time.monotonic() - began_s))
        if not taken[0]:
            raise RuntimeError("the watcher sent nothing")

    def drawn(self, url: str) -> Iterator[None]:
        program = browser()
        assert program is not None
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", "--remote-debugging-port=0"]
            command = [program, *quiet, f"--user-data-dir={profile}", url]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                time.sleep(8)  # until the page is drawn the first time
                yield
                process.terminate()


def browser() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def make_runs(folder: Path, count: int) -> None:
    recipe = {"data": "digits", "model": "mlp", "batch": 64, "lr": 3e-3, "budget": "40 steps", "settings": {"log_every": 1}}
    made = fo.run(recipe_from(recipe, folder), runs=folder / "made", cache=folder / "cache", planning="off", quiet=True)
    (made.path / "result.json").unlink()
    for number in range(count):
        shutil.copytree(made.path, folder / "runs" / f"run-{number}")


def measure(report: Report, asked: argparse.Namespace, folder: Path) -> None:
    small = asked.quick or asked.smoke
    count, turn_s = (5, 2.0) if small else (RUNS, 20.0)
    make_runs(folder, count)
    training, watcher = Training(), Watcher(folder / "runs")
    report.conditions = {"runs": count, "events per second and run": EVENTS_PER_S, "seconds a turn": turn_s}

    def without() -> float:
        return training.rate(turn_s)

    def beside(viewed_by: Callable[[str], Iterator[None]]) -> Callable[[], float]:
        def turn() -> float:
            with watcher.running(viewed_by):
                return training.rate(turn_s)

        return turn

    arms = {"without a watcher": without, "with a watcher and a viewer": beside(watcher.read_all)}
    if browser() is not None:
        arms["with the page in Chromium, same machine"] = beside(watcher.drawn)
    with subprocess.Popen([sys.executable, __file__, WRITE, str(folder / "runs")]) as writer:
        try:
            time.sleep(5)
            training.rate(2.0)
            for name, rates in take_turns(arms, 2 if small else asked.repeats, asked.within).items():
                report.arm(name, "steps/s", rates)
        finally:
            writer.terminate()
    report.arm("the watcher's share of a core", "", watcher.cpu_share)
    report.arm("the watcher's memory", "MB", [size / 1e6 for size in watcher.memory])
    report.arm("sent to the viewer", "kB/s", [rate / 1e3 for rate in watcher.sent_per_s])
    report.ratio(
        "training next to the watcher, times as fast as without", "with a watcher and a viewer", "without a watcher", 0.99
    )


def main() -> int:
    if sys.argv[1:2] == [WRITE]:
        write_forever(Path(sys.argv[2]))
    asked = options(__doc__, repeats=9).parse_args()
    report = Report("watch", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        measure(report, asked, Path(folder))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
