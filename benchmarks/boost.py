"""`flatout boost` on scripts as people write them: how much faster, and are the losses proven to be the same?"""

# Both arms are steps of the same script, from one seed, in processes of their own: as it is, and with what was kept. Those
# in benchmarks/scripts are ours; others, which nobody here wrote, are named by --also NAME=FOLDER:COMMAND.

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from evidence import BEGAN_S, Bar, Report, machine, options

HERE = Path(__file__).parent
# name: arguments, units of a step and what they are; with --smoke the second arguments
OURS: dict[str, tuple[list[str], list[str], float, str]] = {
    "gpt2": (["--steps", "200"], ["--small", "--batch", "8", "--steps", "80"], 12 * 1024, "tokens/s"),
    "mnist_style": (["--epochs", "1"], ["--epochs", "1", "--count", "4000"], 64, "samples/s"),
}
BARS = {"cuda": {"mnist_style": 5.0}, "cpu": {"mnist_style": 1.5}}
GPT2_TOKENS = 400_000
NEVER_SLOWER, MEDIAN = 0.98, 2.0
GAIN = ": boosted over as it is"


def boosted(folder: Path, command: list[str], limit_s: float, options: Sequence[str] = ()) -> dict[str, Any]:
    """The receipt of one script."""
    with tempfile.TemporaryDirectory() as scratch:
        words = Path(scratch) / "words.txt"
        boost = [sys.executable, "-m", "flatout", "boost", "--try-only", "--json", "--out", f"{scratch}/out", *options]
        with words.open("w") as said, told_as_it_comes(words):
            ended = subprocess.run([*boost, *command], cwd=folder, stdout=subprocess.PIPE, stderr=said, timeout=limit_s)
        if ended.returncode or not ended.stdout.strip():
            return {"failed": words.read_text()[-600:]}
        receipt: dict[str, Any] = json.loads(ended.stdout)
        receipt["entries"] = json.loads((Path(scratch) / "out" / "receipt.json").read_text())["entries"]
        patch = Path(scratch) / "out" / "changes.patch"
        receipt["patch"] = patch.read_text() if patch.exists() else ""
        return receipt


@contextmanager
def told_as_it_comes(words: Path) -> Iterator[None]:
    """Each line of `words` goes to stderr, with the second it came in: what takes long is seen."""
    began_s, over = time.monotonic(), threading.Event()

    def tell() -> None:
        with words.open() as said:
            while True:
                last = over.wait(0.2)
                for line in said:
                    print(f"  {time.monotonic() - began_s:4.0f} s  {line.rstrip()}", file=sys.stderr, flush=True)
                if last:
                    return

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def taken_over(path: Path, report: Report, but: Iterable[str]) -> dict[str, float]:
    """The gains of the scripts in an earlier result, which become part of this one, if it has none of its own."""
    earlier = json.loads(path.read_text())
    here, there = machine(report.device), earlier["machine"]
    if unlike := [name for name in ("device", "torch", "flatout") if here[name] != there[name]]:
        raise SystemExit(f"{path} is from another machine: {', '.join(f'{n} {there[n]}, not {here[n]}' for n in unlike)}")
    named = {bar["claim"].removesuffix(GAIN): bar for bar in earlier["bars"] if bar["claim"].endswith(GAIN)}
    bars = {name: bar for name, bar in named.items() if name not in but}
    for name, bar in bars.items():
        report.bars.append(Bar(**{key: value for key, value in bar.items() if key != "reached"}))
        report.conditions[name] = {"source": there.get("source"), **earlier["conditions"][name]}
        report.arms |= {arm: earlier["arms"][arm] for arm in (f"{name} as it is", f"{name} boosted")}
    return {name: bar["value"] for name, bar in bars.items()}


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--only", nargs="*", choices=OURS, default=list(OURS))
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME=FOLDER:COMMAND")
    parser.add_argument("--each", type=float, default=1200.0, metavar="SECONDS", help="at most so long for one script")
    parser.add_argument(
        "--go-on", type=Path, nargs="*", default=[], metavar="JSON", help="earlier results: others of their scripts count"
    )
    parser.add_argument("--trials", metavar="DURATION", help="passed on as boost's own --within")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = Report("boost", __doc__ or "", device)
    scripts: dict[str, tuple[Path, list[str], float, str]] = {}
    for name in asked.only:
        full, small, units, unit = OURS[name]
        scripts[name] = (HERE / "scripts", [f"{name}.py", *(small if asked.smoke else full)], units, unit)
    for written in asked.also:
        name, _, rest = written.partition("=")
        folder, _, command = rest.partition(":")
        scripts[name] = (Path(folder), command.split(), 1.0, "steps/s")
    gains: dict[str, float] = {}
    for path in asked.go_on:
        gains |= taken_over(path, report, [*scripts, *gains])
    for name, (folder, command, units, unit) in scripts.items():
        left_s = (asked.within or 1e9) - (time.monotonic() - BEGAN_S)
        if left_s < 30:
            report.conditions[name] = "no time was left"
            continue
        print(f"{name}: {' '.join(command)}", file=sys.stderr, flush=True)
        try:
            receipt = boosted(folder, command, min(left_s, asked.each), ["--within", asked.trials] if asked.trials else [])
        except subprocess.TimeoutExpired:
            report.conditions[name] = f"not done within {min(left_s, asked.each):.0f} s"
            continue
        if receipt.get("gain") is None:
            report.conditions[name] = receipt.get("failed") or receipt["stopped"]
            continue
        kept = [f"{e['name']}={e['value']}" for e in receipt["entries"] if e["verdict"] == "kept"]
        rejected = {f"{e['name']}={e['value']}": e["why"] for e in receipt["entries"] if e["verdict"] != "kept"}
        report.conditions[name] = {
            "command": " ".join(command),
            "kept": kept,
            "rejected": rejected,
            "paired": receipt["paired"],
            # the patch of a script that nobody here wrote has its lines in it, and they are not ours to keep
            "patch": receipt["patch"] if name in OURS else f"{len(receipt['patch'].splitlines())} lines",
            "trials_s": receipt["took_s"],
            "stopped": receipt["stopped"],
        }
        report.arm(f"{name} as it is", unit, [units / receipt["reference_step_s"]])
        report.arm(f"{name} boosted", unit, [units / receipt["step_s"]])
        gains[name] = float(receipt["gain"])
        whole = next((e for e in receipt["entries"] if e["name"] == "all together"), None)
        at_least = BARS[device.type].get(name, NEVER_SLOWER)
        low, high = (whole["low"], whole["high"]) if whole and whole.get("low") else (None, None)
        report.bars.append(Bar(f"{name}{GAIN}", gains[name], at_least, low=low, high=high))
        report.conditions[name]["pairs"] = whole["n"] if whole else 0
        if asked.out is not None:
            report.write(asked.out, asked.quick or asked.smoke)  # the next one may take all that is left
    if "gpt2" in gains and device.type == "cuda":
        report.bar("gpt2 boosted, tokens/s", "gpt2 boosted", GPT2_TOKENS)
    if len(gains) > 4 and device.type == "cuda":
        report.bars.append(Bar("median gain of all scripts", statistics.median(gains.values()), MEDIAN))
    if not report.bars:
        print(json.dumps(report.conditions, indent=1))
        return 1
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
