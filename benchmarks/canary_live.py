"""`flatout serve` on two cores, a bad version with 5% of the requests: stopped within the stated n; no good request fails.

Real servers, real requests over HTTP at a fixed rate from the same cores, one server after the other. Both versions are the
same model, which takes as long as a larger one: a random time with a median of 20 ms (its process waits, so that it takes no
core). Planted in the bad version: an exception for a row that one request in 200 has; or a slower tail of its time, with
which its p99 is 30% higher; or, by labels of POST /feedback, wrong answers in 12% instead of 10%. The good version has no
fault; it is watched until it is promoted. Counted are requests of the new version until the verdict; the server states n
beforehand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from _labelled_load import LabelledLoad
from evidence import Bar, Report, options, rounds

import flatout as fo
from flatout.packaging.export import export

ODD_AGE, ROWS = 5000, 200
SHARE, RATE, LONGEST_S = "5%", 1500.0, 420.0
TAIL_S, STRETCH = 0.038, 1.34  # the slowest tenth of the times; with waiting for the batch before, p99 is 1.3 times
CLASSES = ["bad", "good", "so so"]
SERVER = """
import random, sys, time
from functools import partial
from flatout.serving import loading
fault, first = {fault!r}, loading.LoadedModel.__init__

def planted(self, order, package, *more):
    first(self, order, package, *more)
    is_new = package.card["run"]["name"].startswith("new")
    def run(whole, rows):
        if is_new and fault == "errors" and any(float(column.max()) > 1000 for column in rows.values()):
            raise RuntimeError("planted")  # by one row in 200, whose age is {odd_age}
        took_s = 0.02 * random.lognormvariate(0, 0.5)
        if is_new and fault == "p99" and took_s > {tail_s}: took_s *= {stretch}
        time.sleep(took_s)
        return whole(rows)
    for name in ("run", "run_arrays"):
        if hasattr(self.runtime, name):
            setattr(self.runtime, name, partial(run, getattr(self.runtime, name)))

loading.LoadedModel.__init__ = planted
from flatout.cli.main import main
sys.argv = ["flatout", "serve", *{arguments!r}]
main()
"""


@dataclass(frozen=True)
class Fault:
    """`figure`: the one that it is seen by. `wrong`: by version, the share of labels that say so."""

    name: str
    kind: str
    figure: str
    wrong: Mapping[str, float] = field(default_factory=dict)


GOOD = Fault("equal", "", "")
BAD = (
    Fault("errors +0.5 points", "errors", "errors"),
    Fault("p99 +30%", "p99", "latency p99"),
    Fault("accuracy -2 points", "labels", "wrong answers", {"1": 0.10, "2": 0.12}),
)


def version(folder: Path, name: str) -> Path:
    """Equal models whose packages differ in the name of the run."""
    random = np.random.default_rng(0)
    ages = random.integers(20, 70, 400).astype(float)
    table = folder / "people.parquet"
    parquet.write_table(pa.table({"age": ages, "hours": random.normal(40, 9, 400), "mood": random.choice(CLASSES, 400)}), table)
    recipe = fo.Recipe(data={"table": str(table), "label": "mood"}, model={"mlp": {"hidden": [8]}}, batch=32, lr=1e-2,
                       budget="20 steps", evaluate=None, name=name, settings={"device": "cpu"})  # fmt: skip
    return export(fo.run(recipe, runs=folder / "runs", cache=None, planning="off"), folder / name).package.path


@contextmanager
def served(fault: Fault, stable: Path, new: Path) -> Iterator[int]:
    """The port of a server whose canary is there."""
    folder = Path(tempfile.mkdtemp(prefix="flatout-canary-"))
    arguments = [f"people={stable}", "--canary", str(new), "--share", SHARE, "--workers", "1", "--port", "0"]
    arguments += ["--state", str(folder / "state"), *(["--needs-labels"] if fault.kind == "labels" else [])]
    program = SERVER.format(fault=fault.kind, arguments=arguments, tail_s=TAIL_S, stretch=STRETCH, odd_age=ODD_AGE)
    environment = {**os.environ, "FLATOUT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    said = folder / "said"
    with said.open("w") as file:
        process = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=file, stderr=file, env=environment)
    try:
        until_s = time.monotonic() + 120
        while "as a canary" not in said.read_text() or " at http" not in said.read_text():
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the server did not start: {said.read_text()}")
            time.sleep(0.1)
        yield int(said.read_text().split(" at http://")[1].split()[0].rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def deployed(
    fault: Fault, stable: Path, new: Path, rows: list[bytes], rate: float, longest_s: float, seed: int
) -> dict[str, Any]:
    with served(fault, stable, new) as port:
        load = LabelledLoad(port, rows, CLASSES, rate, fault.wrong, seed)
        began_s = time.monotonic()
        found = asyncio.run(load.until_judged(longest_s))
        took_s = time.monotonic() - began_s
    figures = {row["figure"]: (row["stable"], row["canary"]) for row in found["figures"]}
    failed = sum(count for status, count in load.statuses.items() if status != 200)
    result = {
        "status": found["status"],
        "reason": found["reason"],
        "requests": found["requests"]["canary"],
        "stated": {name: words.get("caught") for name, words in found["needs"].items()},
        "stated to pass": {name: words.get("passed") for name, words in found["needs"].items()},
        "figures": figures,
        "asked": sum(load.by_version.values()),
        "failed": failed,
        "lost": load.lost,
        "seconds": took_s,
        "per_s": sum(load.by_version.values()) / took_s,
    }
    print(fault.name, result, file=sys.stderr, flush=True)
    return result


def main() -> int:
    parser = options(__doc__, 3)
    parser.add_argument("--rate", type=float, default=RATE, help=f"requests/s (default {RATE:g})")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    report = Report("canary_live", (__doc__ or "").strip().splitlines()[0], torch.device("cpu"))
    report.conditions = {"share": SHARE, "rate": asked.rate, "deployments": []}
    with tempfile.TemporaryDirectory() as place:
        stable, new = (version(Path(place), name) for name in ("old", "new"))
        random = np.random.default_rng(1)
        ages = [ODD_AGE, *random.integers(20, 70, ROWS - 1)]
        rows = [b'{"age": %d, "hours": %.1f}' % pair for pair in zip(ages, random.normal(40, 9, ROWS), strict=True)]
        found: dict[str, list[dict[str, Any]]] = {one.name: [] for one in (GOOD, *BAD)}
        for number in rounds(1 if trial else asked.repeats, asked.within):
            for kind, fault in enumerate((GOOD, *BAD)):
                seed = number * (1 + len(BAD)) + kind
                found[fault.name].append(deployed(fault, stable, new, rows, asked.rate, 10 if trial else LONGEST_S, seed))
    report.conditions["deployments"] = found
    good = found[GOOD.name]
    everything = [one for some in found.values() for one in some]
    report.arm("equal: requests until it is promoted", "requests", [one["requests"] for one in good])
    unfit = sum(one["status"] != "promoted" for one in good)
    report.bars.append(Bar("equal versions that were not promoted", unfit, 0, at_least=False))
    for fault in BAD:
        some = found[fault.name]
        report.arm(f"{fault.name}: requests of the bad version", "requests", [one["requests"] for one in some])
        known = [one["stated"][fault.figure] for one in some if one["stated"].get(fault.figure)]
        if known:  # a verdict may come before 1,000 latencies of the control, from which n is known
            report.arm(f"{fault.name}: the stated n", "requests", known)
        over = sum(
            one["status"] != "rolled back" or one["requests"] > (one["stated"].get(fault.figure) or one["requests"])
            for one in some
        )
        report.bars.append(Bar(f"{fault.name}: not stopped within the stated n", over, 0, at_least=False))
    report.bars.append(Bar("failed requests", sum(one["failed"] + one["lost"] for one in everything), 0, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
