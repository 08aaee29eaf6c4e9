"""A training is not slower next to the live page of 50 runs that log 10 times a second each: within 1%, in paired turns.

The 50 runs are written by a process that works in all turns alike. In every other turn a watcher runs with a viewer that takes
all that it sends; in the others the watcher is stopped.
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
WITHOUT, WITH = "without a watcher", "with a watcher and a viewer"


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
        if step == 101:
            print("writing", flush=True)
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
    """A watcher of a folder, stopped between turns. What it took: seconds of CPU per second, memory, bytes sent to a viewer."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "flatout", "watch", str(folder), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().rpartition(" ")[2].strip()
        self._about = psutil.Process(self._process.pid)
        self.cpu_share: list[float] = []
        self.memory: list[float] = []

    @contextmanager
    def running(self, viewer: Viewer) -> Iterator[None]:
        """The news of the time since the last turn is sent first, and no part of the turn."""
        self._process.send_signal(signal.SIGCONT)
        viewer.wait()
        before, began_s, taken = self._about.cpu_times(), time.monotonic(), viewer.taken
        yield
        after, spent_s = self._about.cpu_times(), time.monotonic() - began_s
        viewer.rates.append((viewer.taken - taken) / spent_s)
        self._process.send_signal(signal.SIGSTOP)
        self.cpu_share.append((after.user + after.system - before.user - before.system) / spent_s)
        self.memory.append(float(self._about.memory_info().rss))

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()  # Ctrl-C is ignored by what a script starts in the background
        self._process.wait(WAIT_S)


class Viewer:
    """Takes everything and draws nothing."""

    def __init__(self, url: str) -> None:
        asked = http.client.HTTPConnection("127.0.0.1", int(url.split(":")[2].strip("/")))
        asked.request("GET", "/events")
        self._answer = asked.getresponse()
        self._news = threading.Event()
        self.taken, self.rates = 0, list[float]()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while line := self._answer.readline():
            self.taken += len(line)
            if line == b"event: points\n":
                self._news.set()

    def wait(self) -> None:
        self._news.clear()
        if not self._news.wait(WAIT_S):
            raise RuntimeError(f"the watcher sent nothing within {WAIT_S} s")


@contextmanager
def drawn(url: str) -> Iterator[None]:
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
    count, turn_s = (5, 2.0) if small else (RUNS, 12.0)
    make_runs(folder, count)
    training = Training()
    report.conditions = {"runs": count, "events per second and run": EVENTS_PER_S, "seconds a turn": turn_s}
    with subprocess.Popen([sys.executable, __file__, WRITE, str(folder / "runs")], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()  # it writes
        watcher = Watcher(folder / "runs")
        viewer = Viewer(watcher.url)
        try:
            arms = arms_of(training, watcher, viewer, turn_s, chromium=asked.chromium)
            take_turns(arms, 1)
            for one in (watcher.cpu_share, watcher.memory, viewer.rates):
                one.clear()
            for name, rates in take_turns(arms, 2 if small else asked.repeats, asked.within).items():
                report.arm(name, "steps/s", rates)
        finally:
            writer.terminate()
            watcher.close()
    report.arm("the watcher's share of a core", "", watcher.cpu_share)
    report.arm("the watcher's memory", "MB", [size / 1e6 for size in watcher.memory])
    report.arm("sent to the viewer", "kB/s", [rate / 1e3 for rate in viewer.rates])
    report.ratio("training next to the watcher, times as fast as without", WITH, WITHOUT, 0.99)


def arms_of(
    training: Training, watcher: Watcher, viewer: Viewer, turn_s: float, *, chromium: bool
) -> dict[str, Callable[[], float]]:
    def beside() -> float:
        with watcher.running(viewer):
            return training.rate(turn_s)

    def beside_chromium() -> float:
        with watcher.running(viewer), drawn(watcher.url):
            return training.rate(turn_s)

    arms: dict[str, Callable[[], float]] = {WITHOUT: lambda: training.rate(turn_s), WITH: beside}
    return {**arms, "with the page in Chromium, same machine": beside_chromium} if chromium else arms


def main() -> int:
    if sys.argv[1:2] == [WRITE]:
        write_forever(Path(sys.argv[2]))
    parser = options(__doc__, repeats=9)
    parser.add_argument("--chromium", action="store_true", help="also with the page in Chromium on this machine; has no limit")
    asked = parser.parse_args()
    report = Report("watch", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        measure(report, asked, Path(folder))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
