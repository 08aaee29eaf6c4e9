"""`flatout doctor` and `flatout boost` on public scripts: how much is gained, after what time, and why nothing was kept."""

# The scripts are those of _zoo_scripts.py, unmodified, at a commit each. Whoever runs this fetches them, from GitHub or from
# --mirror; made data stands in for theirs. Both arms are timed by boost itself, in turns.

from __future__ import annotations

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _zoo_scripts import ZOO, ZooScript
from evidence import BEGAN_S, RESULTS, Bar, Report, machine, options

SITE = Path(__file__).parent / "_zoo_site"
_KEPT = re.compile(r"^flatout boost: (.+?): ([\d.]+)x, kept: ")
_TRIED = re.compile(r"^flatout boost: (.+?): (?:[\d.]+x, )?(kept|rejected): ")
LEAST, MEDIAN, SHARE = 0.98, 2.0, 0.8


def checked_out(script: ZooScript, place: Path, mirror: Path | None) -> Path:
    """The repository's files at the commit, in a folder that later calls use again."""
    repository, commit = script.source
    folder = place / f"{repository.replace('/', '+')}-{commit[:10]}"
    if (folder / ".done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if mirror is None:
        git = folder / ".git"
        _git(git, "init", "--quiet", str(folder))
        _git(git, "fetch", "--quiet", "--depth", "1", f"https://github.com/{repository}", commit)
    else:
        git = next(
            (one for one in _places_of(mirror, repository) if (one / "HEAD").exists()), mirror / repository.replace("/", "+")
        )
    for line in _git(git, "ls-tree", "-r", "-z", commit).split(b"\0"):
        about, _, name = line.partition(b"\t")
        mode, _, blob = about.decode().replace(" blob", "").partition(" ")
        if mode in ("100644", "100755"):
            found = subprocess.run(["git", f"--git-dir={git}", "cat-file", "blob", blob], capture_output=True)
            if found.returncode == 0:  # a mirror may leave out large files, such as pictures
                file = folder / name.decode()
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(found.stdout)
    (folder / ".done").touch()
    return folder


def _places_of(mirror: Path, repository: str) -> list[Path]:
    names = [repository, repository.replace("/", "+"), f"{repository}.git"]
    return [mirror / name / inner for name in names for inner in ("", ".git", "repo", "repo/.git")]


def _git(git: Path, *words: str) -> bytes:
    return subprocess.run(["git", f"--git-dir={git}", *words], check=True, stdout=subprocess.PIPE).stdout


def missing(script: ZooScript) -> list[str]:
    return [name for name in script.needs if importlib.util.find_spec(name) is None]


def started(
    script: ZooScript, command: Sequence[str], folder: Path, root: Path, limit_s: float
) -> tuple[str, list[tuple[float, str]]]:
    """What the command printed to stdout, and each line on stderr with the second it came in."""
    lines: list[tuple[float, str]] = []
    path = [str(SITE), *([str(root / script.path)] if script.path else []), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in path if one), "WANDB_MODE": "disabled"}
    began_s = time.monotonic()
    ours, terminal = os.openpty()  # some of the scripts need one
    with (
        open(ours, "wb"),
        open(terminal, "rb") as stdin,
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdin=stdin, stdout=out, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as child,
    ):
        timer = threading.Timer(limit_s, child.terminate)
        timer.start()
        assert child.stderr is not None
        for line in child.stderr:
            lines.append((time.monotonic() - began_s, line.rstrip()))
            if line.startswith("flatout"):
                print(f"  {lines[-1][0]:4.0f} s  {line.rstrip()[:300]}", file=sys.stderr, flush=True)
        child.wait()
        timer.cancel()
        out.seek(0)
        return out.read(), lines


def diagnosed(script: ZooScript, command: str, folder: Path, root: Path, limit_s: float) -> list[str]:
    doctor = [sys.executable, "-m", "flatout", "doctor", "--json", "--stop", *command.split()]
    said, _ = started(script, doctor, folder, root, limit_s)
    findings = json.loads(said)["findings"] if said.strip().startswith("{") else []
    return [f"{one['id']} {one['share']:.0%}" for one in findings[:3] if one["share"]]


def tried(
    script: ZooScript, command: str, place: Path, mirror: Path | None, within: str, limit_s: float, with_doctor: bool
) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {"kind": script.kind, "source": "@".join(script.source), "command": command, "aside": script.aside}
    if lacks := missing(script):
        return {**row, "failed": f"needs {', '.join(lacks)}"}
    try:
        root = checked_out(script, place, mirror)
    except subprocess.CalledProcessError as error:
        return {**row, "failed": f"could not be fetched: {error}"}
    folder = root / script.folder
    made = root / f".made-{script.name.replace(' ', '-')}"
    if not made.exists():
        script.made(folder)
        made.touch()
    if with_doctor:
        row["doctor"] = diagnosed(script, command, folder, root, limit_s)
    with tempfile.TemporaryDirectory() as scratch:
        boost = [
            sys.executable,
            "-m",
            "flatout",
            "boost",
            "--try-only",
            "--json",
            "--within",
            within,
            "--out",
            f"{scratch}/out",
        ]
        _, lines = started(script, [*boost, *command.split()], folder, root, limit_s)
        receipt = Path(scratch) / "out" / "receipt.json"
        if not receipt.exists():
            failed = lines[-1][1][:300] if lines else "it ended without a word"
            return {**row, "failed": failed, "said": _ours(lines)}
        told = json.loads(receipt.read_text())
    return {**row, **_told_of(told, lines)}


def _told_of(receipt: dict[str, Any], lines: Sequence[tuple[float, str]]) -> dict[str, Any]:
    begins_s = next((at for at, line in lines if "running the unmodified script twice" in line), 0.0)
    together = [one for one in receipt["entries"] if one["name"].startswith("all together") and one["verdict"] == "kept"]
    whole: dict[str, Any] = together[0] if together else {}
    kept = dict(receipt["settings"])
    reasons = [f"{one['name']}: {one['why']}" for one in receipt["entries"] if one["verdict"] != "kept"]
    return {
        "gain": whole.get("measured") or 1.0,
        "low": whole.get("low"),
        "high": whole.get("high"),
        "n": whole.get("n", 0),
        "kept": [f"{name}={value}" for name, value in kept.items()],
        "first_tried_s": next((at - begins_s for at, line in lines if _TRIED.match(line)), None),
        "first_gain_s": next((at for at, line in lines if _KEPT.match(line)), None),
        "receipt_s": next((at for at, line in lines if line.startswith("flatout boost: receipt:")), None),
        "why": "" if kept else "; ".join(reasons)[:400] or receipt.get("stopped", ""),
        "tries": [
            {name: one.get(name) for name in ("name", "value", "verdict", "predicted", "measured", "low", "high", "why")}
            for one in receipt["entries"]
        ],
        "said": _ours(lines),
    }


def _ours(lines: Sequence[tuple[float, str]]) -> list[str]:
    return [f"{at:.0f} s  {line}" for at, line in lines if line.startswith("flatout")]


def measured_before(file: Path, within: str) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text())["conditions"]["scripts"]
    return {name: row for name, row in rows.items() if "gain" in row and row.get("within") == within}


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'script':28} {'kind':15} {'gain':>6} {'interval':>14} {'first':>7}  kept, or why nothing was"]
    for name, row in rows.items():
        gain = f"{row['gain']:.2f}x" if "gain" in row else "-"
        interval = f"{row['low']:.2f} to {row['high']:.2f}" if row.get("low") else ""
        first = f"{row['first_gain_s']:.0f} s" if row.get("first_gain_s") else ""
        words = ", ".join(row["kept"]) if row.get("kept") else row.get("failed") or row.get("why", "")
        lines.append(f"{name[:28]:28} {row['kind']:15} {gain:>6} {interval:>14} {first:>7}  {words[:120]}")
    return "\n".join(lines)


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--only", nargs="*", metavar="NAME", help=f"of {', '.join(one.name for one in ZOO)}")
    parser.add_argument(
        "--aside", choices=["with", "without", "alone"], default="with", help="the scripts that were kept aside"
    )
    parser.add_argument("--mirror", type=Path, help="a folder of git repositories, OWNER/NAME or OWNER+NAME; else GitHub")
    parser.add_argument(
        "--place", type=Path, default=Path(tempfile.gettempdir()) / "flatout-zoo", help="where they are checked out"
    )
    parser.add_argument("--each", type=float, default=900.0, metavar="SECONDS", help="at most so long for one script")
    parser.add_argument("--trials", default="3 min", metavar="DURATION", help="passed on as boost's own --within")
    parser.add_argument("--no-doctor", action="store_true", help="boost alone")
    parser.add_argument("--go-on", type=Path, metavar="FILE", help="an earlier result: what had as long is not run again")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = Report("zoo", __doc__ or "", device, {"within": asked.trials, "data": "made, in place of each script's own"})
    wanted = [one for one in ZOO if asked.aside == "with" or one.aside == (asked.aside == "alone")]
    wanted = [one for one in wanted if asked.only is None or one.name in asked.only]
    if asked.smoke:
        wanted = [one for one in wanted if one.name == "polynomial regression"]
    rows: dict[str, dict[str, Any]] = measured_before(asked.go_on, asked.trials) if asked.go_on else {}
    versions = machine(device)
    for script in wanted:
        if script.name in rows:
            continue
        command = script.command_on(device.type)
        left_s = (asked.within or 1e9) - (time.monotonic() - BEGAN_S)
        if command is None or left_s < 30:
            rows[script.name] = {"kind": script.kind, "failed": "not for a CPU" if command is None else "no time was left"}
            continue
        print(f"{script.name}: {command}", file=sys.stderr, flush=True)
        row = tried(script, command, asked.place, asked.mirror, asked.trials, min(left_s, asked.each), not asked.no_doctor)
        rows[script.name] = {**row, "flatout": versions["source"], "torch": versions["torch"], "within": asked.trials}
        if not asked.smoke:
            report.conditions["scripts"] = rows
            report.write(asked.out or RESULTS, asked.quick)  # what was measured is kept if a later script ends the time
    report.conditions["scripts"] = rows
    print(table(rows))
    ran = [row for row in rows.values() if "gain" in row]
    if ran:
        gains = [row["gain"] for row in ran]
        report.bars.append(Bar("median gain", statistics.median(gains), MEDIAN if device.type == "cuda" else 1.0))
        report.bars.append(Bar("least gain", min(gains), LEAST))
        kept = sum(bool(row["kept"]) for row in ran) / len(ran)
        report.bars.append(Bar("share of scripts where something is kept", kept, SHARE if device.type == "cuda" else 0.0))
        took = [row["receipt_s"] for row in ran if row["receipt_s"]]
        report.bars.append(Bar("seconds until the receipt, median", statistics.median(took), 90.0, at_least=False))
    return report.finish(asked) if ran else 1


if __name__ == "__main__":
    sys.exit(main())
