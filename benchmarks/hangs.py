"""Hangs and stragglers of 12 kinds planted in one of four ranks: each is named within 30 s, right rank and right line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _watched import Fault
from evidence import Bar, Report, options

from flatout.world.watch.pulse import Pulse

PROGRAM = Path(__file__).parent / "_watched.py"
LIMIT_S = 30.0
HEALTHY_S = 60.0
MARKS = 200_000
FAULTS = {
    "asleep in its data": Fault("sleep", 2),
    "asleep in its data, the others in DDP's backward": Fault("sleep", 1, ddp=True),
    "asleep in its data, the rank that tells": Fault("sleep", 0),
    "reads from storage that does not answer": Fault("read", 3),
    "deadlock in the model": Fault("lock", 1),
    "endless loop in the model": Fault("spin", 2),
    "in another collective than the others": Fault("collective", 3),
    "C code that keeps Python's lock": Fault("gil", 1),
    "stopped (SIGSTOP)": Fault("stop", 2),
    "asleep in its save, the others in the barrier after it": Fault("save", 0),
    "slow data": Fault("slow data", 1, until="straggler"),
    "slow forward": Fault("slow forward", 3, until="straggler"),
}
SIGNS = {
    "stop": "is stopped (SIGSTOP",
    "slow data": "difference is in data",
    "slow forward": "difference is in forward",
}  # no line to name


def main() -> int:
    asked = options(__doc__, repeats=1).parse_args()
    report = Report("hangs", str(__doc__), torch.device("cpu"))
    report.conditions = {
        "ranks": 4,
        "group": "gloo on one host, a small MLP, about 25 steps/s; the store is a process of its own",
        "limit_s": "as it comes: 10 s, or five usual steps; 20 s in a save",
        "right": "the one rank and its very line; for SIGSTOP the state, for stragglers the phase: these have no line",
        "faults": [],
    }
    faults = dict(list(FAULTS.items())[:2]) if asked.quick or asked.smoke else FAULTS
    for _ in range(asked.repeats):
        for name, fault in faults.items():
            report.conditions["faults"].append(plant(name, fault))
    found = report.conditions["faults"]
    report.arm("until it was named", "s", [one["seconds"] for one in found])
    report.arm("one mark of the loop", "us of CPU", [mark_us() for _ in range(5)])
    named = [one["right_rank"] and one["right_line"] and one["seconds"] <= LIMIT_S for one in found]
    report.bars.append(Bar(f"named right in {LIMIT_S:g} s, of {len(named)}", sum(named), len(named)))
    report.bars.append(Bar("the slowest, s", max(one["seconds"] for one in found), LIMIT_S, at_least=False))
    report.conditions["told_without_fault"] = run(Fault("none", -1, limit_s=5.0 if asked.quick or asked.smoke else HEALTHY_S))
    told = len(report.conditions["told_without_fault"])
    report.bars.append(Bar(f"told in {HEALTHY_S:g} s without a fault", told, 0, at_least=False))
    report.bar("one mark of the loop, us", "one mark of the loop", 1.0, at_least=False)
    return report.finish(asked)


def plant(name: str, fault: Fault) -> dict[str, Any]:
    """To the first news that is told of it."""
    said = run(fault)
    planted_s = next(line["clock_s"] for line in said if line["kind"] == "planted")
    told = [line for line in said if line["kind"] != "planted"]
    first = told[0] if told else {"clock_s": planted_s + fault.limit_s, "odd": [], "told": "nothing", "kind": None}
    sign = SIGNS.get(fault.kind) or f"{PROGRAM.name}:{fault.line} "
    outcome = {
        "fault": name,
        "rank": fault.rank,
        "seconds": round(first["clock_s"] - planted_s, 2),
        "right_rank": first["kind"] == fault.until and first["odd"] == [fault.rank],
        "right_line": sign in first["told"],
        "told": first["told"],
    }
    print(f"{name}: {outcome['seconds']} s, {outcome['told']}", file=sys.stderr, flush=True)
    return outcome


def run(fault: Fault) -> list[dict[str, Any]]:
    """What its ranks said, in processes of their own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps([vars(fault)])],
        env=environment, capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in ended.stdout.splitlines()]


def mark_us() -> float:
    pulse, began_s = Pulse(), time.process_time()
    for step in range(MARKS // 5):
        for phase in ("data", "forward", "backward", "exchange", "optimizer"):
            pulse.beat(step, phase)
    return (time.process_time() - began_s) / MARKS * 1e6


if __name__ == "__main__":
    raise SystemExit(main())
