"""What one replica of a service holds and needs: measured here with the real server and load test, or read from a file.

A rate belongs to the cores that it was measured on. Nodes of another kind hold another rate, which `flatout load --find` finds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from flatout.base.child import Child
from flatout.base.errors import MachineError, UsageError
from flatout.base.latency_goal import LatencyGoal
from flatout.machine.host import affinity_cores, usable_cores

_OPEN_S, _FIND_S = 300.0, 600.0
_LOOK_S = 0.05
_STEP = "2s"  # of the load test, at each rate
# runs a command on some cores, with its output in a file
_STARTED = """
import os, sys
cores = sys.argv[1]
if cores:
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
os.execv(sys.argv[3], sys.argv[3:])
"""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Replica:
    """`memory_bytes` and `start_s` are None where no server was started."""

    held_per_s: float
    held_why: str
    memory_bytes: int | None = None
    start_s: float | None = None


def replica_from(path: Path, goal: LatencyGoal) -> Replica:
    """From the JSON that `flatout load --find --json` has printed."""
    try:
        written = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"--measured: {path} can't be read as JSON: {error}") from error
    return Replica(_held(written, goal, f"--measured: {path}"), f"measured by flatout load --find, from {path.name}")


def _held(written: Any, goal: LatencyGoal, where: str) -> float:
    if not isinstance(written, dict) or "highest_rate" not in written:
        raise UsageError(f"{where} is no result of flatout load --find --json: it has no highest_rate")
    rate, asked = written["highest_rate"], written.get("goal")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise UsageError(f"{where}: no rate held the goal: serve a smaller model, give it more cores, or allow more time")
    if not isinstance(asked, dict) or not {"share", "limit_ms"} <= asked.keys():
        raise UsageError(f"{where} does not say for which goal its rate was measured")
    if (asked["share"], asked["limit_ms"]) != (goal.share, 1e3 * goal.seconds):
        was = f"p{100 * float(asked['share']):g} {float(asked['limit_ms']):g} ms"
        raise UsageError(f"{where} was measured for the goal {was}, not for {goal}: measure again with --slo {str(goal)!r}")
    return float(rate)


def measure_replica(package: Path, goal: LatencyGoal, cores: int, say: Say, *, held: Replica | None = None) -> Replica:
    """Starts the server here and loads it. `held`: its rate is known, only memory and time to start are measured."""
    own, others = _cores_for(cores)
    with TemporaryDirectory(prefix="flatout-replica-") as folder:
        said = Path(folder) / "serve.out"
        began_s = time.monotonic()
        serve = ["serve", f"measured={package.resolve()}", "--port", "0", "--slo", str(goal), "--device", "cpu"]
        say(f"starting the server here on {cores} core{'s' if cores > 1 else ''}")
        with Child(_command(serve, own, said)) as server:
            url = _opened(server, said, began_s)
            start_s = time.monotonic() - began_s
            if held is None:
                say("searching the highest rate that holds the goal: about a minute")
                rate = _find(url, goal, others, Path(folder) / "load.json")
                shared = "" if others else "; the load came from the same cores, so it is a lower limit"
                held = Replica(rate, f"measured here on {cores} core{'s' if cores > 1 else ''}{shared}")
            memory_bytes = _memory_of(server.pid)
    return Replica(held.held_per_s, held.held_why, memory_bytes, start_s)


def _cores_for(wanted: int) -> tuple[list[int], list[int]]:
    """Cores of the server, and the others, which send the load. Empty: all."""
    if wanted > usable_cores():
        raise UsageError(
            f"--cpus {wanted}: this machine has {usable_cores()} usable cores, so such a replica can't be measured here; "
            "measure one where it will run, with flatout load URL --find --slo GOAL --json, and give --measured FILE"
        )
    if wanted == affinity_cores() or sys.platform != "linux":
        return [], []
    import os

    all_cores = sorted(os.sched_getaffinity(0))
    return all_cores[:wanted], all_cores[wanted:]


def _command(words: Sequence[str], cores: Sequence[int], output: Path) -> list[str]:
    started = [sys.executable, "-c", _STARTED, ",".join(map(str, cores)), str(output)]
    return [*started, sys.executable, "-m", "flatout", *words]


def _opened(server: Child, said: Path, began_s: float) -> str:
    while time.monotonic() - began_s < _OPEN_S:
        if server.wait(_LOOK_S) is not None:
            raise MachineError(f"the server can't be started here: {server.printed().strip() or server.how_it_ended()}")
        with suppress(OSError):
            line = said.read_text().partition("\n")
            if line[1] and " at " in line[0]:
                return line[0].rpartition(" at ")[2].strip()
    raise MachineError(f"the server did not open its port within {_OPEN_S:g} s: {server.printed().strip()}")


def _find(url: str, goal: LatencyGoal, cores: Sequence[int], result: Path) -> float:
    load = ["load", url, "--find", "--slo", str(goal), "--for", _STEP, "--json"]
    with Child(_command(load, cores, result)) as test:
        code = test.wait(_FIND_S)
        try:
            written = json.loads(result.read_text())
        except (OSError, ValueError):
            raise MachineError(f"the load test failed: {test.printed().strip() or test.how_it_ended()}") from None
    if code is None:
        raise MachineError(f"the load test found no rate within {_FIND_S:g} s")
    return _held(written, goal, f"the load test with {goal}")


def _memory_of(pid: int) -> int:
    """Of the server's processes; what they share counts once."""
    total = 0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with suppress(psutil.Error):
            told = process.memory_full_info()
            total += getattr(told, "pss", told.rss)
    return int(total)
