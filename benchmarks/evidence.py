"""What the benchmarks share: repeats that take turns, bars with their uncertainty, results with the machine they are from."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import flatout
from flatout.machine.device import device_name
from flatout.machine.facts import read_facts
from flatout.measure.stats import Summary, compare_paired, summarize

RESULTS = Path(__file__).parent / "results"
BEGAN_S = time.monotonic()
NEEDS_GPU = 2


def options(claim: str | None, repeats: int) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("--out", type=Path, help="folder for the JSON; by default benchmarks/results, or nowhere with --quick")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"of every arm, taking turns (default {repeats})")
    parser.add_argument("--within", type=float, help="seconds: no round begins that would end later, if one is done")
    parser.add_argument("--quick", action="store_true", help="a few short repeats, to see that it runs; proves nothing")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)  # tiny sizes on a CPU, for the code path alone
    return parser


def gpu_or_leave(smoke: bool) -> torch.device:
    """The CUDA device; with `smoke` the CPU; else the process ends here with exit code 2."""
    if smoke:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        print(f"this benchmark needs a CUDA GPU, and torch {torch.__version__} sees none here", file=sys.stderr)
        raise SystemExit(NEEDS_GPU)
    return torch.device("cuda", torch.cuda.current_device())


def rounds(repeats: int, within_s: float | None) -> Iterator[int]:
    """Numbers of rounds; fewer where the next, as long as the last, would go past that many seconds from the start."""
    for number in range(repeats):
        began_s = time.monotonic()
        yield number
        now_s = time.monotonic()
        if within_s is not None and 2 * now_s - began_s - BEGAN_S > within_s and number + 1 < repeats:
            print(f"{number + 1} of {repeats} rounds done: no time for another within {within_s:g} s", file=sys.stderr)
            return


def take_turns(arms: Mapping[str, Callable[[], float]], repeats: int, within_s: float | None = None) -> dict[str, list[float]]:
    """`repeats` values of every arm. A round runs all arms, every other one backwards: a slow spell of the machine hits all."""
    values: dict[str, list[float]] = {name: [] for name in arms}
    for number in rounds(repeats, within_s):
        names = list(arms)[:: -1 if number % 2 else 1]
        for name in names:
            values[name].append(arms[name]())
        shown = ", ".join(f"{name} {values[name][-1]:,.6g}" for name in arms)
        print(f"round {number + 1} of {repeats}: {shown}", file=sys.stderr, flush=True)
    return values


@dataclass(frozen=True)
class Bar:
    """A figure that was promised, beside what was measured."""

    claim: str
    value: float
    limit: float
    at_least: bool = True
    low: float | None = None
    high: float | None = None

    @property
    def reached(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass
class Report:
    """One benchmark's evidence. `finish` writes it, prints it and gives the exit code."""

    name: str
    claim: str
    device: torch.device
    conditions: dict[str, Any] = field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def arm(self, name: str, unit: str, values: Sequence[float]) -> Summary:
        summary = summarize(values)
        self.arms[name] = {"unit": unit, **asdict(summary), "values": list(values)}
        return summary

    def ratio(self, claim: str, ours: str, other: str, at_least: float) -> None:
        """A bar on how many times `other`'s rate ours is, taken round by round: what a round had in common cancels out."""
        found = compare_paired(self.arms[ours]["values"], self.arms[other]["values"], prefer="max")
        self.bars.append(Bar(claim, found.ratio, at_least, low=found.low, high=found.high))

    def bar(self, claim: str, arm: str, limit: float, *, at_least: bool = True) -> None:
        """A bar on an arm's median."""
        found = self.arms[arm]
        self.bars.append(Bar(claim, found["median"], limit, at_least, found["low"], found["high"]))

    def finish(self, asked: argparse.Namespace) -> int:
        trial = asked.quick or asked.smoke
        folder = asked.out or (None if trial else RESULTS)
        if folder is not None:
            self.write(folder, trial)
        self._print()
        return 0 if trial or all(bar.reached for bar in self.bars) else 1

    def write(self, folder: Path, trial: bool) -> None:
        where = "" if self.device.type == "cpu" else f"-{_slug(device_name(self.device))}"
        path = folder / f"{self.name}{where}{'-trial' if trial else ''}.json"
        bars = [{**asdict(bar), "reached": bar.reached} for bar in self.bars]
        document = {
            "benchmark": self.name,
            "claim": self.claim,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "trial": trial,
            "machine": machine(self.device),
            "conditions": self.conditions,
            "arms": self.arms,
            "bars": bars,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")
        print(f"written: {path}", file=sys.stderr)

    def _print(self) -> None:
        print(f"\n{self.name}: {self.claim}")
        print(f"{device_name(self.device)}, torch {torch.__version__}, Python {platform.python_version()}\n")
        width = max(len(name) for name in [*self.arms, *(bar.claim for bar in self.bars)])
        print(f"{'':{width}}  {'median':>12}  {'95% interval':>25}   n")
        for name, arm in self.arms.items():
            interval = f"{_figure(arm['low'])} to {_figure(arm['high'])}"
            print(f"{name:{width}}  {_figure(arm['median']):>12}  {interval:>25}  {arm['n']:>2}  {arm['unit']}")
        for bar in self.bars:
            interval = "" if bar.low is None or bar.high is None else f"{_figure(bar.low)} to {_figure(bar.high)}"
            limit = f"{'at least' if bar.at_least else 'at most'} {_figure(bar.limit)}"
            verdict = "reached" if bar.reached else "MISSED"
            print(f"{bar.claim:{width}}  {_figure(bar.value):>12}  {interval:>25}      {limit}: {verdict}")


def machine(device: torch.device) -> dict[str, Any]:
    facts = read_facts()
    return {
        "device": device_name(device),
        "cpu": facts.cpu.model,
        "usable_cores": facts.cpu.usable_cores,
        "torch_threads": facts.torch_threads,
        "memory_bytes": facts.memory_usable_bytes,
        "platform": facts.platform,
        "python": facts.python,
        "torch": facts.torch,
        "cuda": facts.cuda if device.type == "cuda" else None,
        "driver": facts.driver,
        "flatout": flatout.__version__,
        "source": source(),
    }


def source() -> str:
    """Of flatout itself: one more letter is another one."""
    home = Path(flatout.__file__).parent
    files = sorted(home.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
