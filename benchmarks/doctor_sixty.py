"""The doctor names the planted cause first on 90% of 60 sick scripts that were written without a look at its rules."""

# Each script runs once under `flatout doctor --json`, in a folder and a process of its own. `_sick_list.py` says what was
# planted and by which words a finding counts as right: they are looked for in the finding's name, title and evidence, and for
# slow scripts also in the line that the finding points at, if it is in the function with the planted fault
# or one that the planted line calls.
# The doctor's rules were improved on the half `worked` only; `unseen` was counted before and after. `new` are thirty more,
# written later; its first count was of rules that had seen none of them.

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _sick_list import SICK, UNSEEN, WORKED_ON, Sick
from _sick_new import NEW
from evidence import Bar, Report, options

HALVES = {"worked": WORKED_ON, "unseen": UNSEEN, "all": SICK, "new": NEW}
LINE_FINDINGS = ("slow_python", "slow_transform", "costly_line", "operators_in_loop")
"""They say that the time goes to the line they point at: if that is where the fault was planted, they name it."""
_MOST_S = 240


@dataclass(frozen=True)
class Verdict:
    name: str
    place: int  # 1: the planted cause is the first finding; 0: it is not among them
    findings: list[str]
    seconds: float


def examine(sick: Sick, threads: int | None) -> tuple[list[dict[str, Any]], float, str]:
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flatout", "doctor", "--json", str(sick.path)]
        extra = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        try:
            run = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_MOST_S, env={**_environment(), **extra}
            )
        except subprocess.TimeoutExpired:
            return [], _MOST_S, f"not done after {_MOST_S} s"
    try:
        found = json.loads(run.stdout)["findings"]
    except (ValueError, KeyError):
        return [], time.perf_counter() - began_s, run.stderr[-2000:]
    return found, time.perf_counter() - began_s, ""


_TIMED = """
import json, runpy, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
ends = []
register_optimizer_step_post_hook(lambda *_: ends.append(time.perf_counter()))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("\\n" + json.dumps((ends[-1] - ends[2]) / (len(ends) - 3)))
"""


def saved_share(sick: Sick, threads: int | None) -> float:
    """The share of the time between two updates that the cure saves, from one run of each."""
    spent_s = []
    for text in (sick.path.read_text(), sick.cured()):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / sick.path.name
            script.write_text(text)
            extra = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
            run = subprocess.run(
                [sys.executable, "-c", _TIMED, str(script)], cwd=folder, capture_output=True, text=True, check=True,
                timeout=_MOST_S, env={**_environment(), **extra},
            )  # fmt: skip
            spent_s.append(float(run.stdout.splitlines()[-1]))
    return 1 - spent_s[1] / spent_s[0]


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONWARNINGS": "ignore"}


def place_of_cause(sick: Sick, findings: list[dict[str, Any]]) -> int:
    """The number of the first finding that names what was planted; 0 if none does."""
    words = re.compile(sick.words, re.IGNORECASE)
    for number, one in enumerate(findings, 1):
        said = f"{one['id']}\n{one['id'].replace('_', ' ')}\n{one['what']}\n{one['evidence']}"
        at = _planted_line(sick, one["where"]) if sick.sort == "slow" else ""
        if words.search(said) or (at and (one["id"] in LINE_FINDINGS or words.search(at))):
            return number
    return 0


def _planted_line(sick: Sick, where: str) -> str:
    """The source of the line that a finding points at, or "" if it is not in a function with a planted line."""
    name, _, number = where.rpartition(":")
    if Path(name).name != sick.path.name or not number.isdigit():
        return ""
    text = sick.path.read_text()
    line = int(number)
    planted = sick.planted_lines()
    called = {name for number in planted for name in re.findall(r"(\w+)\(", text.splitlines()[number - 1])}
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    inside = any(
        one.lineno <= line <= (one.end_lineno or 0)
        and (one.name in called or any(one.lineno <= p <= (one.end_lineno or 0) for p in planted))
        for one in functions
        if one.name not in ("main", "train", "__init__")
    )
    return text.splitlines()[line - 1] if inside or line in planted else ""


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--half", choices=tuple(HALVES), default="all")
    parser.add_argument("--only", help="one script, by name, with its findings")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of the scripts, for a machine that others use too")
    parser.add_argument("--log", type=Path, help="append each verdict to this file, as a line of JSON")
    parser.add_argument("--name", default="doctor_sixty", help="of the JSON file")
    parser.add_argument("--prove", action="store_true", help="instead: what share of a slow script's step its cure saves")
    asked = parser.parse_args()
    chosen = [one for one in HALVES[asked.half] if asked.only in (None, one.name)]
    chosen = chosen[:2] if asked.quick or asked.smoke else chosen
    if asked.prove:
        for sick in (one for one in chosen if one.sort == "slow"):
            print(f"{sick.name}: {saved_share(sick, asked.threads):.0%}", flush=True)
        return 0
    verdicts = [_judged(sick, asked) for sick in chosen]
    if asked.only:
        return 0
    report = Report(asked.name, __doc__ or "", torch.device("cpu"), {"threads": asked.threads, "half": asked.half})
    report.conditions["verdicts"] = {
        one.name: {"place": one.place, "findings": one.findings, "seconds": round(one.seconds, 1)} for one in verdicts
    }
    for half, of in HALVES.items():
        names = {one.name for one in of}
        places = [one.place for one in verdicts if one.name in names]
        if not places or (half == "all" and asked.half != "all"):
            continue
        report.arm(f"{half}: planted cause first", "of 1", [float(place == 1) for place in places])
        report.arm(f"{half}: planted cause found", "of 1", [float(place > 0) for place in places])
        first = sum(place == 1 for place in places) / len(places)
        report.bars.append(Bar(f"{half}: planted cause first", first, 0.9))
    return report.finish(asked)


def _judged(sick: Sick, asked: argparse.Namespace) -> Verdict:
    findings, seconds, trouble = examine(sick, asked.threads)
    verdict = Verdict(sick.name, place_of_cause(sick, findings), [one["id"] for one in findings], seconds)
    if asked.log:
        with asked.log.open("a") as file:
            file.write(json.dumps({"name": sick.name, "place": verdict.place, "findings": findings, "trouble": trouble}) + "\n")
    if asked.half != "unseen" or asked.only:
        print(
            f"{sick.name}: {verdict.place or 'missed'} of {', '.join(verdict.findings) or trouble} ({seconds:.0f} s)",
            file=sys.stderr,
        )
    if asked.only:
        print(json.dumps(findings, indent=2), file=sys.stderr)
    return verdict


if __name__ == "__main__":
    raise SystemExit(main())
